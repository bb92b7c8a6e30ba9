"""Maps hidden states to what is asked of a step."""
