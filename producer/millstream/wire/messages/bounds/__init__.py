"""Bounds on the shape of formats: what a worker may be asked to compile."""
