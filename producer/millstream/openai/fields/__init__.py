"""The fields of requests: their names and the forms of their values."""
