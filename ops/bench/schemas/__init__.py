"""Response formats by the hundred: how many are accepted, kept to, and what hostile ones cost others."""
