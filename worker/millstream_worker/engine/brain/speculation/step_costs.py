"""Learns from settled steps how long a step takes by its number of tokens, and computes how many draft tokens
pay: those with which the expected tokens per second are highest.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Sequence
from itertools import accumulate
from math import inf
from statistics import median_low

_KEPT = 5  # durations of a size; their median counts, as a pause is not the step's
_FEWEST = 2  # of them: a size's first step is recorded, which takes several times as long
_STALE = 4096  # steps after which a size is forgotten: contexts grow, a model is compiled
_SWEEP = 256  # steps
_GAIN = 1.02  # less is noise


def _rung(tokens: int) -> bool:
    return tokens <= 8 or tokens % (1 << (tokens - 1).bit_length() - 3) == 0


class StepCosts:
    """The durations of steps of up to `most` tokens. Draft tokens fill a step up to a rung, of which an
    octave has four: so that few sizes are measured, and recorded.
    """

    def __init__(self, most: int) -> None:
        self._rungs = [tokens for tokens in range(1, most + 1) if _rung(tokens)]
        self._most = most
        self._lately: dict[int, deque[float]] = {}  # durations by tokens
        self._seconds: dict[int, float] = {}  # their medians
        self._sizes: list[int] = []  # those with a median, ascending
        self._seen: dict[int, int] = {}  # number of the last step of this size
        self._steps = 0

    def settled(self, tokens: int, seconds: float) -> None:
        self._steps += 1
        if tokens <= self._most:
            lately = self._lately.setdefault(tokens, deque(maxlen=_KEPT))
            lately.append(seconds)
            self._seen[tokens] = self._steps
            if len(lately) >= _FEWEST:
                if tokens not in self._seconds:
                    insort(self._sizes, tokens)
                self._seconds[tokens] = median_low(lately)
        if self._steps % _SWEEP == 0:
            self._forget_stale()

    def pays(self, tokens: int, rows: int) -> bool:
        """True if any number of draft tokens would pay if all were accepted."""
        return self.best(tokens, rows, [1.0] * (self._most - tokens)) > 0

    def best(self, tokens: int, rows: int, survivals: Sequence[float]) -> int:
        """Returns how many draft tokens pay in a step that computes `tokens` and samples `rows` without any.
        `survivals`: the probabilities that they are accepted, in falling order.
        """
        plain = self._estimate(tokens)
        expected = list(accumulate(survivals, initial=float(rows)))
        best, best_rate = 0, _GAIN * rows / plain
        for size in self._rungs[bisect_right(self._rungs, tokens) :]:
            if size - tokens >= len(expected):
                break
            rate = expected[size - tokens] / max(self._estimate(size), plain)
            if rate > best_rate:
                best, best_rate = size - tokens, rate
        return best

    def _estimate(self, tokens: int) -> float:
        """Returns seconds, interpolated between two known sizes. Up to twice the largest size they stay the
        same, so that more is tried; beyond that they are infinite.
        """
        known = self._seconds.get(tokens)
        if known is not None:
            return known
        above = bisect_left(self._sizes, tokens)
        if above == 0:
            return self._seconds[self._sizes[0]] if self._sizes else inf
        low = self._sizes[above - 1]
        if above == len(self._sizes):
            return self._seconds[low] if tokens <= 2 * low else inf
        high = self._sizes[above]
        slope = (self._seconds[high] - self._seconds[low]) / (high - low)
        return self._seconds[low] + slope * (tokens - low)

    def _forget_stale(self) -> None:
        stale = [size for size, step in self._seen.items() if step <= self._steps - _STALE]
        for size in stale:
            del self._seen[size], self._lately[size]
            if self._seconds.pop(size, None) is not None:
                self._sizes.remove(size)
