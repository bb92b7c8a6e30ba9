"""Finds queues by model, and keeps a client for each."""
