"""Defines an image that the engine holds, and its place in a prompt.

prompt   t t F F F t F F F t        runs of features: 3 tokens from place 2, 3 from place 6
features     0 1 2   3 4 5
units        ─0─ ─1─── ─2─          each of as many features, encoded by itself
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

ImageKey = tuple[str, bytes]  # the salt of the prompts that may share it, and the digest of the image file


@dataclass(slots=True, eq=False)
class HeldImage:
    """`encoded`: the units whose features are there, or will be before the next step."""

    key: ImageKey
    features: int
    units: int
    encoded: set[int] = field(default_factory=set)

    def unit_of(self, feature: int) -> int:
        return feature * self.units // self.features

    @property
    def whole(self) -> bool:
        """True if all of its features are there."""
        return len(self.encoded) == self.units


@dataclass(frozen=True, slots=True, eq=False)
class RopePositions:
    """The positions that the model's RoPE takes for a prompt with images, and for what comes behind it."""

    axes: NDArray[np.int32]  # [A, prompt]
    offset: int  # of a token behind the prompt, from its place in the row to its position on every axis


class PlacedImage:
    """An image in the prompt of some rows. `runs`: first place and number of tokens of each."""

    def __init__(self, image: HeldImage, runs: Sequence[tuple[int, int]]) -> None:
        self.image = image
        self.runs = runs
        self._firsts = [first for first, _ in runs]
        self._counts = [count for _, count in runs]
        self._features = [0, *accumulate(self._counts)]  # before each run, and of all
        assert self._features[-1] == image.features, "an image stands for as many tokens as it has features"

    @property
    def first(self) -> int:
        """Returns the place of its first feature."""
        return self._firsts[0]

    @property
    def end(self) -> int:
        """Returns the place behind its last feature."""
        return self._firsts[-1] + self._counts[-1]

    def pieces(self, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Yields place, feature and number of the features that stand at places begin <= p < end."""
        for run in range(max(0, bisect_right(self._firsts, begin) - 1), len(self._firsts)):
            first = self._firsts[run]
            if first >= end:
                return
            low, high = max(first, begin), min(first + self._counts[run], end)
            if low < high:
                yield low, self._features[run] + low - first, high - low

    def units(self, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """Yields the units that have features at places begin <= p < end, and the first such place."""
        before = -1
        for place, feature, count in self.pieces(begin, end):
            for unit in range(self.image.unit_of(feature), self.image.unit_of(feature + count - 1) + 1):
                if unit > before:
                    first = -(-unit * self.image.features // self.image.units)  # of its features
                    yield unit, place + max(0, first - feature)
                    before = unit
