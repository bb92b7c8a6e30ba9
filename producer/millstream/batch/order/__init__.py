"""The order in which the lines of an input are sent: those that begin alike together."""
