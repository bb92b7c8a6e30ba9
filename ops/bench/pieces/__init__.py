"""One piece of the system at a time, each module a command of its own."""
