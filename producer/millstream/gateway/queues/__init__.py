"""What all endpoints share: connections, callers, limits, and which queues there are."""
