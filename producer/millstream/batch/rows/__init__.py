"""Input lines to requests, and results to output rows. Knows no files."""
