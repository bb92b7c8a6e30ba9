"""From lanes and expired leases to prepared jobs, as many as the engine can hold."""
