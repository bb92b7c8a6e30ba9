"""The prepared images of all jobs under way."""
