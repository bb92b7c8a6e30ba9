"""The page of `millstream queue`, fitted to a terminal, once or again and again."""
