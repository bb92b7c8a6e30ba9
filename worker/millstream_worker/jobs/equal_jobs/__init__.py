"""Equal requests are computed once: one of them is, the others take its tokens, or its kept answer."""
