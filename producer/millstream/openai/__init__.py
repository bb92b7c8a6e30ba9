"""OpenAI request bodies to requests, and results to OpenAI answers: for batch lines and the gateway."""
