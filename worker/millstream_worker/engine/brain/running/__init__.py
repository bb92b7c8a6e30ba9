"""Rows that run: admission, continuation, preemption, and the time that steps take."""
