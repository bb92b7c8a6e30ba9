"""Carries batches out: any gateway, one at a time for each batch, from wherever the last one came to."""
