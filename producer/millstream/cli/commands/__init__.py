"""The commands for single jobs, dead letters and queues."""
