"""Computes on GPUs alone: imported by choosers only, which a test names."""
