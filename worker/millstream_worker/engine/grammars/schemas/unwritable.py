"""The characters that a JSON answer cannot spell, and the check that refuses schemas which require one.

llguidance compares names as they are spelled: an object that may have other names than those of its schema
would take `\\u0061` as another one than `a`. So escapes by code are barred, and each text has one spelling;
control characters without a letter of their own have none. llguidance drops such a character from a constant
or a pattern without a word, and its answers would not fit: these schemas are refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from millstream_worker.engine.grammars.schemas.pattern_characters import UNWRITABLE, unwritable_in

ESCAPES = 'nrbtf\\"'  # what may stand behind a backslash


def problem_of_texts(schema: Any) -> str | None:
    """Returns the place where a schema requires an unwritable character, and the remedy; None if it requires
    none. Names of properties may have such characters: they are copied as they are. Data is read as a schema,
    too, as a reference may point there.
    """
    open_parts = [("", schema, False)]
    while open_parts:
        path, part, is_data = open_parts.pop()
        if problem := _problem_of_part(part, is_data):
            return f"at {path or '/'}: {problem}"
        pairs: Iterable[tuple[object, Any]] = ()
        if isinstance(part, dict | list):
            pairs = part.items() if isinstance(part, dict) else enumerate(part)
        for name, inner in pairs:
            open_parts.append((f"{path}/{name!s:.40}"[-200:], inner, is_data or name in ("const", "enum")))
    return None


def _problem_of_part(part: Any, is_data: bool) -> str | None:
    if isinstance(part, str) and is_data and (code := _unwritable(part)) is not None:
        return (
            f"the text {part!r:.80} has the control character U+{code:04X}, which cannot be written in an "
            "answer; leave it out"
        )
    for pattern in _patterns(part) if isinstance(part, dict) else ():
        if (code := unwritable_in(pattern)) is not None:
            return (
                f"the pattern {pattern!r:.80} names U+{code:04X}, and may ask for a control character that "
                "cannot be written in an answer; write it without"
            )
    return None


def _patterns(part: dict[str, Any]) -> list[str]:
    named = part.get("patternProperties")
    patterns = [part.get("pattern"), *(named if isinstance(named, dict) else ())]
    return [pattern for pattern in patterns if isinstance(pattern, str)]


def _unwritable(text: str) -> int | None:
    return next((ord(letter) for letter in text if ord(letter) in UNWRITABLE), None)
