"""Attention by the C++ kernels."""
