"""Finds the texts and patterns of a grammar in one pass: an unclosed quote or slash is looked up once a line,
not once for each that follows, so that the time is in proportion to the length.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_MARK = re.compile(r'["/]')
_BODIES = {
    '"': re.compile(r'[^"\\\n]*+(?:\\.[^"\\\n]*+)*+'),
    "/": re.compile(r"[^/\\\n]*+(?:\\.[^/\\\n]*+)*+"),
}


class Literal(NamedTuple):
    """`start` and `end` include the quotes or slashes, `body` does not."""

    start: int
    end: int
    is_pattern: bool
    body: str


def literals(grammar: str) -> Iterator[Literal]:
    """Yields them in their order. None contains a line feed, and no pattern is empty."""
    unclosed = dict.fromkeys(_BODIES, 0)  # to where no such mark closes: one inside is read to the same place
    place = 0
    while found := _MARK.search(grammar, place):
        mark, place = found[0], found.end()
        if place <= unclosed[mark] or (mark == "/" and grammar.startswith("/", place)):
            continue
        body = _BODIES[mark].match(grammar, place)
        assert body is not None, "it may be empty"
        if not grammar.startswith(mark, body.end()):
            unclosed[mark] = body.end()
            continue
        place = body.end() + 1
        yield Literal(found.start(), place, mark == "/", body[0])
