"""Loading a model: its weights, its anatomy, and the backends that it gets."""
