"""From the engine's steps to the token log and the result."""
