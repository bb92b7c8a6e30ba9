"""The small records that make up a Job."""
