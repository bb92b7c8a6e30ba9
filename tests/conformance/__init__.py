"""The gateway before OpenAI's clients of several ages, each in a virtual environment of its own:
`PYTHONPATH=tests python -m conformance`.
"""
