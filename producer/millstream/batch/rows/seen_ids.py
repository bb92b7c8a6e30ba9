"""Remembers the custom_ids of a batch's input: 16 bytes each, where a set of Python's takes about 100."""

from __future__ import annotations

import hashlib
import secrets
from array import array


class SeenIds:
    """A mutable set of texts: 64 bits of each one's keyed digest, in a table with open addressing. Of a
    million texts, two that differ are taken for the same with a probability of 3e-8.
    """

    def __init__(self) -> None:
        self._key = secrets.token_bytes(16)
        self._count = 0
        self._table = array("Q", bytes(8 * 1024))

    def add(self, text: str) -> bool:
        """Adds a text. True if it is new."""
        return self.add_digest(hashlib.blake2b(text.encode(), digest_size=8, key=self._key).digest())

    def add_digest(self, digest: bytes) -> bool:
        """Adds a text by a digest of its own, of which it takes the first 64 bits."""
        value = int.from_bytes(digest[:8]) or 1  # 0: an empty place
        place = self._place(value)
        if self._table[place]:
            return False
        self._table[place] = value
        self._count += 1
        if 2 * self._count > len(self._table):
            self._grow()
        return True

    def _place(self, value: int) -> int:
        """Returns the place where the value is, or belongs."""
        table, mask = self._table, len(self._table) - 1
        place = value & mask
        while table[place] and table[place] != value:
            place = (place + 1) & mask
        return place

    def _grow(self) -> None:
        before = self._table
        self._table = array("Q", bytes(16 * len(before)))
        for value in before:
            if value:
                self._table[self._place(value)] = value
