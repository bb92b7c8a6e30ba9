"""Kernels that mask and draw."""
