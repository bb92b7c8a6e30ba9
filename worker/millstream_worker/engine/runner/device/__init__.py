"""The machine below: copies, threads, control groups."""
