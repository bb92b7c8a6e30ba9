"""Fuzzing of everything that comes from outside: each input has a result or a clear error, and nothing else.

`python -m fuzz --help` with `tests` on the path, or `make fuzz`; the short form runs with the tests.
"""
