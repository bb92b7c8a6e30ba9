"""Which models run: their types, their configurations, and the text halves of multimodal ones."""
