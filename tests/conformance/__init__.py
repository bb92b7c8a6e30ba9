"""The gateway before programs that nobody here wrote, each in an environment of its own, and before a table
of requests that vLLM gets, too: `PYTHONPATH=tests python -m conformance`.
"""
