"""The runner: a model, its paged KV storage, attention over it, and sampling: the engine's torch."""
