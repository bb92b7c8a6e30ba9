"""Files of tenants: their bytes in an object store, what is known of them in Redis. Knows no HTTP."""
