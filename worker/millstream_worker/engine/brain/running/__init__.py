"""Running rows: admission, continuation, preemption, and the duration of steps."""
