"""The gateways of an arena, and what goes through them: batches, uploads, answers."""
