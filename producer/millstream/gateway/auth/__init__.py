"""Who calls: keys, tenants, limits, and which repeated request is the same one."""
