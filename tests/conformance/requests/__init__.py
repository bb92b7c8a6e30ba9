"""The requests of our own: one for each field, and each shape of a field, of OpenAI's and vLLM's chat and
completions.
"""
