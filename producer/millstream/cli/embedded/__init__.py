"""The server and the worker that a command starts for itself."""
