"""What a queue keeps beside its jobs: metadata, heartbeats, dead letters, counts; and durability."""
