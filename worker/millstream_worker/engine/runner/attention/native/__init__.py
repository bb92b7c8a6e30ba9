"""Attention on the CPU in C++, compiled where it runs."""
