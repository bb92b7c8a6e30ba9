"""A queue's state beside its jobs: metadata, heartbeats, dead letters, counts; and durability."""
