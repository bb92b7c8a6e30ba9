"""The output of a command, for people and programs: text and JSON. Sends nothing."""
