"""Functions whose parameters a grammar keeps in part only: their calls are checked at an answer's end."""
