"""Renders chat templates, within a budget, and finds out what they know."""
