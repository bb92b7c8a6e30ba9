"""Recurrent state beside keys and values: what a module keeps of its row from token to token."""
