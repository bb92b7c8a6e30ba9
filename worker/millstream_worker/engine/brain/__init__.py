"""The brain of the batch loop: rows, KV blocks and the plan of each step. No torch, no I/O, no clock."""
