"""Finds the end of a JSON object in a text that comes in pieces."""

from __future__ import annotations

import re

_MARK = re.compile(r'[{}\[\]"\\]')


class JsonEnd:
    """`feed` pieces in order, from the object's first character on."""

    __slots__ = ("_depth", "_escaped", "_in_string")

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def feed(self, text: str) -> int | None:
        """Returns the place in this piece behind the object's end; None: it goes on."""
        place = 0
        while place < len(text):
            if self._escaped:
                self._escaped = False
                place += 1
                continue
            found = _MARK.search(text, place)
            if found is None:
                return None
            place = found.end()
            mark = found[0]
            if mark == "\\":
                self._escaped = self._in_string
            elif mark == '"':
                self._in_string = not self._in_string
            elif not self._in_string:
                self._depth += 1 if mark in "{[" else -1
                if self._depth == 0:
                    return place
        return None
