"""What all methods of a client share: the session, and one queue's jobs and status."""
