"""Linear layers and embeddings whose weights are whole numbers with a scale for each group of inputs."""
