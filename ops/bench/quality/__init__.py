"""What quantised weights, or keys and values in INT8, cost a model's answers."""
