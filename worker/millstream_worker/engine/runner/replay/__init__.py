"""Records the calls that decode steps make on the CPU, to compiled code and our library, and replays them
without Python."""
