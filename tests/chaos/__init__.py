"""The failure suite: a queue under load, struck by faults, and a ledger that knows what must come of it.

python -m chaos --help (with `tests` on the path), or `make chaos`.
"""
