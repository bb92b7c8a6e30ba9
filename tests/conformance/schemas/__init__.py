"""Which JSON schemas the worker takes, and what it makes of them: no gateway, no model."""
