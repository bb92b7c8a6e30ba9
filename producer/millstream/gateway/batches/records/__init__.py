"""Records and leases of batches, and the parts that are written, in Redis. It knows no HTTP."""
