"""Keeps leases, and receives what ends them: renewal, and the control channel."""
