"""Messages of a chat as clients send them: their contents, and calls of functions in their old form."""
