"""What operators and model pickers read: models, health, metrics, backlog."""
