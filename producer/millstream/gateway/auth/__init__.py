"""Authenticates callers, applies their limits, and recognises repeated requests."""
