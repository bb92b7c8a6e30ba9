"""Batches as the server knows them: their records, the lease of one, and the parts that are written. Knows no HTTP."""
