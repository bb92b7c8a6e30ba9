"""Waiting rows: their creation, their order, and their cached prefixes."""
