"""The machine below: clocks, copies, threads, control groups."""
