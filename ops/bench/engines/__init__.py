"""Engines side by side on the same workloads: their turns, each in a process of its own, and the tables of
the results. `contest` is the command; `adapters` has a module for each engine.
"""
