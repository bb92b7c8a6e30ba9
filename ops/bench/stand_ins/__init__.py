"""Engine processes without a model, for what is not about the model: one draws at a given pace, one (of
the tests) counts."""
