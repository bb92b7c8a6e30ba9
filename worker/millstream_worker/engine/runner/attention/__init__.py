"""Attention over the paged KV storage: the interface, and the backend that suits a device."""
