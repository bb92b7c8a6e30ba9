"""The physical limits of a machine, from a model's size and the machine's measured rates: the dashed lines of
the pictures and the limits of the tables. Pure arithmetic; nothing is measured here.
"""
