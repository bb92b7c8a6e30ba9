"""All that programs and the gateway say to each other, and what must hold of it whatever a model writes."""
