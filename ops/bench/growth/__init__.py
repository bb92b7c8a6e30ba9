"""How rate and memory grow with rows, context, pool, waiting jobs and workers. `experiment` is the command;
each other module measures one kind of growth, and they share `part`.
"""
