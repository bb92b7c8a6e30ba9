"""How rate and memory grow with what there is more of. `experiment` is the command; each other module
measures one kind of growth, and `part` is what they share."""
