"""Keeps a set of line numbers: a bit each in memory, ranges as text where it is stored."""

from __future__ import annotations

from collections.abc import Iterable


class LineSet:
    """A mutable set of line numbers, which start at 1."""

    def __init__(self) -> None:
        self._bits = bytearray()

    def __contains__(self, number: int) -> bool:
        place = number >> 3
        return place < len(self._bits) and bool(self._bits[place] >> (number & 7) & 1)

    def add(self, number: int) -> None:
        place = number >> 3
        if place >= len(self._bits):
            self._bits.extend(bytes(place + 1 - len(self._bits)))
        self._bits[place] |= 1 << (number & 7)

    def add_ranges(self, text: str) -> None:
        """Adds ranges as `ranges_of` writes them. Raises ValueError."""
        for part in text.split(","):
            first, _, last = part.partition("-")
            for number in range(int(first), int(last or first) + 1):
                self.add(number)


def ranges_of(numbers: Iterable[int]) -> str:
    """Writes numbers as ranges, such as `1-5,7`; without numbers, an empty text."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in ranges)
