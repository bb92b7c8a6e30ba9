"""Compiles a loaded model and keeps the code for later starts. `engine.compilation` says when."""
