"""The pool of KV blocks, its extension in host memory, and the hashes by which blocks are found."""
