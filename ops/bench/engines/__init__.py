"""Engines side by side on the same workloads: who takes turns with whom, each in a process of its own, and
the tables that come of it. `contest` is the command; `adapters` has a module for each engine."""
