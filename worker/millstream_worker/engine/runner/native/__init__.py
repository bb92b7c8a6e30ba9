"""C++ for the CPU, compiled where it runs: attention over paged keys and values, linear layers, the most
likely token, and calls that are made again. It knows a step's plan, and no model."""
