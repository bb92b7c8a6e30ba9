"""The client: what a producer does with a queue. Public names are those of `millstream`."""
