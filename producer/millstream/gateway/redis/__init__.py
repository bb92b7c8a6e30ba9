"""The gateway's private state in Redis: keys, scripts and their calls. No other program reads it."""
