"""One worker as a process: its connections, its components, and their start and end."""
