"""Input lines to requests, and results and faults to output rows. Knows no files."""
