"""What people and programs see of a command: text and JSON. Sends nothing."""
