"""The rows of the batch, and the plan of a step made of them."""
