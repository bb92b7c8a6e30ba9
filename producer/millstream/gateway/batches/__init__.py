"""`/v1/batches`."""
