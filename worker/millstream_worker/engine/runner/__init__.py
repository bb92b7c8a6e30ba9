"""The runner: a model, its paged KV storage, attention over it, and the sampling of tokens: the engine's
torch."""
