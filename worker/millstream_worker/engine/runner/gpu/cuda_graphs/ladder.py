"""The sizes for which steps are recorded. A step runs in the smallest that holds it; the difference is
padding, so that rungs lie closer together the smaller they are."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

_LEAST_TOKENS = 16
_PER_DOUBLING = 4  # rungs from a size to twice it: padding stays below a fifth of the step


def row_rungs(most: int) -> list[int]:
    """Numbers of decoding rows: 1, 2, 4, 8, then a multiple of 8, at the end `most` itself."""
    return _closed([1, 2, 4, *_by_eighths(8, most)], most)


def token_rungs(most: int) -> list[int]:
    """Numbers of new tokens in a step that is not decoding alone; the last is `most`."""
    return _closed(_by_eighths(_LEAST_TOKENS, most), most)


def rung_for(rungs: Sequence[int], size: int) -> int | None:
    """The smallest rung that holds `size`; None: there is none."""
    place = bisect_left(rungs, size)
    return rungs[place] if place < len(rungs) else None


def _by_eighths(first: int, most: int) -> list[int]:
    rungs, rung = [], first
    while rung < most:
        rungs.append(rung)
        doubling = 1 << rung.bit_length() - 1
        rung += max(8, doubling // _PER_DOUBLING)
    return rungs


def _closed(rungs: list[int], most: int) -> list[int]:
    return [*(rung for rung in rungs if rung < most), most]
