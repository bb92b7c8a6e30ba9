"""Attention by Triton kernels."""
