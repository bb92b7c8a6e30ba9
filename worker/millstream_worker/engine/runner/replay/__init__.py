"""Steps of decoding rows on the CPU as calls that are made again: what a step of so many rows calls, compiled
code and our library, is recorded once, and then made without Python in between."""
