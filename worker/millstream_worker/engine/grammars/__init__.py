"""Grammars: which tokens may come next in a row whose output has a required form. By llguidance; no torch."""
