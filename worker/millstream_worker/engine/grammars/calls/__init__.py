"""Calls of functions in an answer's text: their forms, the grammar of each form, and its reader."""
