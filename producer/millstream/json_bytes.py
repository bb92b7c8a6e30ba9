"""Writes JSON for readers that take a file or a stream line by line, and reads what others write."""

from __future__ import annotations

import json
from typing import Any

# JSON itself escapes the other characters by which readers such as Python's `splitlines` end a line.
_LINE_ENDS = ("\x85", "\u2028", "\u2029")


def json_bytes(value: Any) -> bytes:
    """Returns the value in UTF-8, as one line for every reader."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    for character in _LINE_ENDS:
        text = text.replace(character, f"\\u{ord(character):04x}")
    # the bytes of a path that is not UTF-8 are half surrogates, which JSON can escape
    return text.encode("utf-8", "backslashreplace")


def strict_json(text: str) -> Any:
    """Returns the value. Raises ValueError, also for NaN and infinities, and RecursionError."""
    if text.startswith("\ufeff"):  # as json.loads says it
        raise ValueError("Unexpected UTF-8 BOM (decode using utf-8-sig): line 1 column 1 (char 0)")
    return _DECODER.decode(text)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)  # json.loads would make one for each text
