"""Files of tenants: their bytes in an object store, their records in Redis. It knows no HTTP."""
