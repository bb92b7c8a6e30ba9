"""Weights as whole numbers with a scale for each group of inputs: their layout, GGUF's blocks, and the file
that keeps them."""
