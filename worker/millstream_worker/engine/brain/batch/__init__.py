"""The rows of the batch, and their plan of a step."""
