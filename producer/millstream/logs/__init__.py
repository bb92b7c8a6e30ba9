"""The log of a service: its lines, and those of failures that last. The client has none."""
