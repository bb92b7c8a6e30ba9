"""Rows that wait: their order, their cached prefixes, and how a request becomes rows."""
