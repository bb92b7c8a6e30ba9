"""Runs batches: any gateway, one at a time for each batch, from wherever the last one came to."""
