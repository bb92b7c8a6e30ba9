"""The wire contract: messages, keys and scripts. What both sides, and clients in other languages, agree on."""
