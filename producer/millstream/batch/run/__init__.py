"""A run under way: jobs submitted, awaited and counted."""
