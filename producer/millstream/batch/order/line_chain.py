"""Links lines so that those with a common beginning follow each other, in arrays: no object per line.

Lines are numbered from 0. The chain is that of the file at first; for each size of beginnings, from the
shortest on, a line is moved behind the last one before it that begins so, too. So groups stand where their
first lines stand, keep the order of the file, and have the groups of longer beginnings inside them.
"""

from __future__ import annotations

import secrets
from array import array
from collections.abc import Generator, Iterator

from millstream.batch.order.beginnings import SIZES

_PRIME = 2**61 - 1
_PAUSE_LINES = 256  # between two steps: some tenths of a millisecond


class LineChain:
    """`order` is there after the last step; `moved`: it is not the file's. `groups`: those that have no other
    inside; `shared_bytes`: of beginnings that an earlier line has, too. Memory: 17 bytes a line.
    """

    def __init__(self, starts: array[int], hashes: array[int]) -> None:
        """The hashes of line i are from `starts[i]` up to `starts[i + 1]`."""
        self.groups = 0
        self.shared_bytes = 0
        self.moved = False
        self.order = array("I")
        self._starts, self._hashes = starts, hashes
        self._count = count = len(starts) - 1
        self._next = array("I", range(1, count + 1))
        self._last = array("I", range(count))  # of the group that the line is the first of
        self._depth = bytearray(count)  # the number of sizes at which another line begins so, too
        self._members = min(count, len(hashes))  # lines of the depth at hand, or more

    def steps(self) -> Iterator[None]:
        """Link all lines. A caller with other tasks lets them run between two steps."""
        before = 0
        for level, size in enumerate(SIZES):
            if not (shared := (yield from self._refine(level))):
                break
            self.shared_bytes += shared * (size - before)
            before = size
        at = 0
        while at < self._count:
            self.order.append(at)
            at = self._next[at]
            if not at % _PAUSE_LINES:
                yield

    def _refine(self, level: int) -> Generator[None, None, int]:
        """Split the groups of this depth by the next size. Returns the number of lines that begin as an
        earlier one.
        """
        starts, depth, last = self._starts, self._depth, self._last
        table = _Firsts(starts, self._hashes, level, self._members)
        self._members = shared = 0
        divided = not level  # the group at hand has groups inside
        before, at = self._count, 0
        for done in range(self._count):
            if not done % _PAUSE_LINES:
                yield
            then, moved = self._next[at], False
            if depth[at] == level:
                if last[at] != at:  # a group of this depth begins
                    divided, last[at] = False, at
                first = table.first(at) if starts[at] + level < starts[at + 1] else at
                if first != at:
                    shared += 1
                    if last[first] == first:
                        self._deepen(first)
                        self.groups += divided
                        divided = True
                    self._deepen(at)
                    moved = self._follow(first, at, before)
            if not moved:
                before = at
            at = then
        return shared

    def _deepen(self, line: int) -> None:
        self._depth[line] += 1
        self._members += 1

    def _follow(self, first: int, line: int, before: int) -> bool:
        """Make the line the last of a group. True if it stood behind another line, which was before it."""
        end, self._last[first] = self._last[first], line
        if end == before:
            return False
        self.moved = True
        self._next[before] = self._next[line]
        self._next[line], self._next[end] = self._next[end], line
        return True


class _Firsts:
    """A table with open addressing of the first lines with a hash of this level. Of `most` lines."""

    def __init__(self, starts: array[int], hashes: array[int], level: int, most: int) -> None:
        self._starts, self._hashes, self._level = starts, hashes, level
        self._places = 1 + 2 * most
        self._table = array("I", [0]) * self._places  # the number of a line and 1; 0: free
        self._key = 1 + secrets.randbelow(_PRIME - 1)  # nobody chooses lines that take long to find

    def first(self, line: int) -> int:
        """The first line with this one's hash: itself, if it is new."""
        starts, hashes, level, table = self._starts, self._hashes, self._level, self._table
        value = hashes[starts[line] + level]
        place = value * self._key % _PRIME % self._places
        while found := table[place]:
            if hashes[starts[found - 1] + level] == value:
                return found - 1
            place = (place + 1) % self._places
        table[place] = line + 1
        return line
