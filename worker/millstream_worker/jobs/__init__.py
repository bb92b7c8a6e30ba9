"""The held jobs, the queue to the engine, and the stored form of their output."""
