"""Shared by all methods of a client: the session, and one queue's jobs and status."""
