"""From arguments to accepted jobs. Reads no stream."""
