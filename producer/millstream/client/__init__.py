"""The client: a producer's access to a queue. Its public names are those of `millstream`."""
