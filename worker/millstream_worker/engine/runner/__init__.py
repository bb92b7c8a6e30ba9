"""The runner: a model, its paged KV storage, attention over it, and the drawing of tokens: the engine's
torch."""
