"""Quantised checkpoints in safetensors: each format's tensors become plain weights, or codes of its own."""
