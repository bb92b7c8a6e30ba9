"""The pool of KV blocks, its extension in host memory, and the hashes that find blocks again."""
