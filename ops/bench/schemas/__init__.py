"""Response formats by the hundred: how many are accepted, and kept to."""
