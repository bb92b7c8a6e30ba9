"""Batches as the server knows them: records, leases, and the parts that are written. Knows no HTTP."""
