"""Images of jobs: their turn, their bound, and the way to the engine."""
