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

    def __len__(self) -> int:
        return int.from_bytes(self._bits).bit_count()

    def add(self, number: int) -> None:
        self._reach(number)
        self._bits[number >> 3] |= 1 << (number & 7)

    def discard(self, number: int) -> None:
        if number in self:
            self._bits[number >> 3] &= ~(1 << (number & 7))

    def add_ranges(self, text: str, most: int) -> None:
        """Adds ranges as `ranges_of` writes them. Raises ValueError, also for a number above `most`."""
        for part in text.split(","):
            first, _, last = part.partition("-")
            self._add_range(int(first), int(last or first), most)

    def _add_range(self, first: int, last: int, most: int) -> None:
        if not 1 <= first <= last <= most:
            raise ValueError(f"lines {first} to {last} of {most}")
        self._reach(last)
        before, behind = (first + 7) >> 3, (last + 1) >> 3  # bytes that are all of the range
        if before >= behind:
            for number in range(first, last + 1):
                self.add(number)
            return
        self._bits[before:behind] = b"\xff" * (behind - before)
        for number in (*range(first, before << 3), *range(behind << 3, last + 1)):
            self.add(number)

    def _reach(self, number: int) -> None:
        if (missing := (number >> 3) + 1 - len(self._bits)) > 0:
            self._bits.extend(bytes(missing))


def ranges_of(numbers: Iterable[int]) -> str:
    """Writes numbers as ranges, such as `1-5,7`; without numbers, an empty text."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in ranges)
