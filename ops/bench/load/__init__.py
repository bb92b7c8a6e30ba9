"""Requests that arrive over time, whoever serves them: an open loop against an engine in this process, or
through a queue. `prefix` is the command that uses both."""
