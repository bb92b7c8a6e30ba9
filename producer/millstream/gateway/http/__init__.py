"""Which HTTP it speaks: errors, bodies, headers, event streams. Knows no queue."""
