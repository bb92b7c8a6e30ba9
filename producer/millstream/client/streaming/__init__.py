"""The reader's half of the streaming protocol, and the delivery of published messages. Knows no queue."""
