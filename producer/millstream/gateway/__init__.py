"""The HTTP gateway: OpenAI's API in front of the queues. Stateless: all that it must remember is in Redis."""
