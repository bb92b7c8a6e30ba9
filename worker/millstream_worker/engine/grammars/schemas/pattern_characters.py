"""Finds the characters in a regular expression that a JSON answer cannot spell, so that the pattern might
require one. A pattern that is not understood counts as one that does.

The syntax is that of Rust's `regex`; llguidance takes a part of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

UNWRITABLE = {*range(0x20), 0x7F} - {ord(letter) for letter in "\n\r\b\t\f"}

_MOST = 0x10FFFF
_PIECE = re.compile(
    r"\\[xuU]\{(?P<braced>[0-9a-fA-F]++)\}"
    r"|\\(?:x(?P<two>[0-9a-fA-F]{2})|u(?P<four>[0-9a-fA-F]{4})|U(?P<eight>[0-9a-fA-F]{8}))"
    r"|(?P<set>\\[pP](?:\{[^}\\]*+\}|.)|\\[dDsSwW])|(?P<open>\[\^?\]?)|\\(?P<escaped>.)|(?P<plain>.)",
    re.DOTALL,
)
_BY_LETTER = {"a": 0x07, "f": 0x0C, "t": 0x09, "n": 0x0A, "r": 0x0D, "v": 0x0B}
_OPERATORS = re.compile("&&|--|~~")
_IN_BYTES = re.compile(r"\(\?[a-zA-Z]*+-[a-zA-Z]*u")


def unwritable_in(pattern: str) -> int | None:
    """Returns the code of an unwritable character that the pattern may require; None if there is none. A
    class that has writable characters as well requires none.
    """
    depth, begin, pieces = 0, 0, list(_PIECE.finditer(pattern))
    if _IN_BYTES.search(pattern):  # a class may end at 0xFF
        return next((code for piece in pieces if (code := _code(piece)) in UNWRITABLE), None)
    for place, piece in enumerate(pieces):
        if piece["open"]:
            begin = begin if depth else place
            depth += 1
        elif depth and piece["plain"] == "]":
            depth -= 1
            if not depth and (code := _unwritable_in_class(pieces[begin:place])) is not None:
                return code
        elif not depth and (code := _code(piece)) in UNWRITABLE:
            return code
    return None


def _unwritable_in_class(pieces: Sequence[re.Match[str]]) -> int | None:
    """Returns the code of an unwritable character of a class, given without its closing bracket, if the
    class may have no other characters."""
    first, *inner = pieces
    codes = [_code(piece) for piece in inner]
    if first["open"].endswith("]"):
        codes.insert(0, ord("]"))
    odd = _OPERATORS.search("".join(piece[0] for piece in inner)) is not None
    named = [code for code in codes if code in UNWRITABLE or (odd and _is_beside(code))]
    if not named or not (odd or any(piece["open"] for piece in inner) or _is_without(first, inner, codes)):
        return None
    return named[0]


def _is_beside(code: int | None) -> bool:
    """True for codes next to unwritable ones: a range less its ends may be one character, as in
    `[\\n-\\f--\\n\\f]`."""
    return code is not None and (code <= 0x20 or 0x7E <= code <= 0x80)


def _is_without(first: re.Match[str], inner: Sequence[re.Match[str]], codes: Sequence[int | None]) -> bool:
    """True if a class without nested classes and operators may have unwritable characters only."""
    ranges = list(_ranges(inner, codes))
    if first["open"].startswith("[^"):  # it has the last of all characters, unless that is excluded
        lower = all(piece["set"] in (None, "\\d", "\\s", "\\w") for piece in inner)
        return not lower or any(high >= _MOST for _, high in ranges)
    if any(piece["set"] for piece in inner):
        return False
    return all(_is_unwritable(low, high) for low, high in ranges)


def _ranges(inner: Sequence[re.Match[str]], codes: Sequence[int | None]) -> Iterator[tuple[int, int]]:
    """Yields the first and last code of each range and each single character of a class. `codes`: those of
    `inner`, perhaps with one before them."""
    dash = [False] * (len(codes) - len(inner)) + [piece["plain"] == "-" for piece in inner]
    place = 0
    while place < len(codes):
        low = codes[place]
        is_range = place + 2 < len(codes) and dash[place + 1]
        high = codes[place + 2] if is_range else low
        if low is not None and high is not None:
            yield low, high
        place += 3 if is_range else 1


def _is_unwritable(low: int, high: int) -> bool:
    return all(code in UNWRITABLE for code in range(low, min(high, low + 0x20) + 1))


def _code(piece: re.Match[str]) -> int | None:
    """Returns the code of the one character that a piece of a pattern matches; None if it matches several."""
    digits = piece["braced"] or piece["two"] or piece["four"] or piece["eight"]
    if digits:
        return int(digits, 16)
    if letter := piece["escaped"]:
        return _BY_LETTER.get(letter, ord(letter))
    return ord(piece["plain"]) if piece["plain"] else None
