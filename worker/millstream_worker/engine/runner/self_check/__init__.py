"""Checks at start that what is fast computes what plain PyTorch computes, on this device, for this model."""
