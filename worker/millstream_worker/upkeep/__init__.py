"""The queue's maintenance, which every worker does for all."""
