"""Cuts runs of tokens, or of rows that share a prefix, into the tiles that kernels compute."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from millstream_worker.engine.brain.batch.plan import Int64


def tiles(lens: NDArray[Any], size: int) -> tuple[Int64, Int64, Int64]:
    """Tiles of up to `size` of runs of such lengths: the run of each, its place there, and its length."""
    if len(lens) and lens.max() == 1:
        return np.arange(len(lens)), np.zeros(len(lens), np.int64), lens.astype(np.int64)
    counts = -(-lens // size)
    owner = np.repeat(np.arange(len(lens)), counts)
    firsts = (np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)) * size
    return owner, firsts, np.minimum(lens[owner] - firsts, size)
