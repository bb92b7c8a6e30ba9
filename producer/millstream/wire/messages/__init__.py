"""The data of the protocol: messages, records and replies, and their encoding. No I/O."""
