"""The wire contract: messages, keys and scripts. What clients in any language and workers agree on."""
