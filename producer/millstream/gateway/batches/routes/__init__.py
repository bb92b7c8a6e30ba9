"""The routes of batches."""
