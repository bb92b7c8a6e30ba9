"""The gateway's settings, and its way to the server."""
