"""The memory of keys and values: its layout, its size, and copies in host memory."""
