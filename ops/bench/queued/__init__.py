"""The same work through a real queue and by the engine alone. `comparison` is the command, `stack` the
processes around a workload, `client` the program of the processes that submit and read."""
