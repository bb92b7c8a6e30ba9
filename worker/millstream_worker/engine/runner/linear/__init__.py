"""Linear layers as the engine computes them."""
