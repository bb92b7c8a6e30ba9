"""The commands `millstream batch`."""
