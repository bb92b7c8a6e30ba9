"""C++ for the CPU, compiled where it runs: attention over paged keys and values, and linear layers."""
