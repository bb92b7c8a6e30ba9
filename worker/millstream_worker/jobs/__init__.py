"""The jobs that the worker holds, the queue to its engine, and their output as it is stored."""
