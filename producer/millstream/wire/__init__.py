"""The wire contract between clients in any language and workers: messages, keys and scripts."""
