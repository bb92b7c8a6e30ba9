"""What clients ask of batches, over HTTP."""
