"""Rules by which a schema becomes one that the compiler knows, and closed where it is of arguments."""
