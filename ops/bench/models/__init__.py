"""The models that are measured: shapes with random weights, checkpoints, their sizes, and other files of
them."""
