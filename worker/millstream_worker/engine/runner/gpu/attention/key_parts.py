"""Cuts the keys that a step reads into parts, one for each program of a kernel, so that no program reads much
longer than the others: as long as the device has places for programs, a long run of keys is read by several
of them (split-KV, https://crfm.stanford.edu/2023/10/12/flashdecoding.html).

How long a part is follows from all keys of the step. So one row of 30,000 tokens among 255 short ones is cut
as finely as if it were alone, and the short ones are not cut at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from millstream_worker.engine.brain.batch.plan import Int64

STEP = 64  # keys: parts begin at whole turns of a kernel


@dataclass(frozen=True, slots=True, eq=False)
class KeyParts:
    """I parts of R runs of keys; run after run."""

    runs: Int64  # [I] the run of each
    numbers: Int64  # [I] and its number there
    begins: Int64  # [I] places in the row, [begin, end)
    ends: Int64  # [I]
    counts: Int64  # [R] parts of each run


def cut(begins: NDArray[Any], ends: NDArray[Any], programs: int, least: int) -> KeyParts:
    """Parts of the runs [begin, end) of keys, of `least` keys or more where a run is cut at all. Of the runs
    that are cut there are up to `programs` // 2, and of their parts up to `programs`."""
    lens = ends - begins
    size = max(least, -(-int(lens.sum()) // programs))
    counts = np.maximum(lens // size, 1).astype(np.int64)
    runs = np.repeat(np.arange(len(lens)), counts)
    if len(runs) == len(lens):
        return KeyParts(runs, np.zeros_like(runs), begins, ends, counts)
    numbers = np.arange(len(runs)) - np.repeat(np.cumsum(counts) - counts, counts)
    steps, parts = (-(-lens // STEP))[runs], counts[runs]
    first, last = (begins[runs] + numbers_ * steps // parts * STEP for numbers_ in (numbers, numbers + 1))
    return KeyParts(runs, numbers, first, np.minimum(last, ends[runs]), counts)
