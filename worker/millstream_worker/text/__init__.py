"""This package has the model's side without weights: text to token ids and back, the chat template, and the
sampling defaults of the checkpoint.
"""
