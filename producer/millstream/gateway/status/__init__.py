"""Serves operators and model pickers: models, health, metrics, backlog."""
