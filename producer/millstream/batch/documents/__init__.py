"""Documents to the lines of a batch, and its answers to documents."""
