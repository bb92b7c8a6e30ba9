"""The same work through a real queue and by the engine alone. `comparison` is the command, `stack` the
processes around a workload, `client` the program of the processes that submit and read. `gateway` measures
the way over HTTP: `gateway_stack` has its processes, `counted_stream` its readers."""
