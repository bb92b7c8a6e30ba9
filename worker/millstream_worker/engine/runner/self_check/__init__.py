"""Checks at start that the fast paths compute what plain PyTorch computes, on this device, for this model."""
