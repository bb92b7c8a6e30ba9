"""Changes JSON schemas before they are compiled, into ones that mean the same and that the compiler knows."""
