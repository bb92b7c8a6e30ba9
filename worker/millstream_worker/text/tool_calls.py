"""Finds the calls of tools in an answer's text, in the form to which the grammar of tools keeps it."""

from __future__ import annotations

import hashlib
import re

from millstream.wire.messages.tools import CALL_BEGIN, CALL_END

# JSON has no bare line feed in a string: the first end of a call is its own.
_CALL = re.compile(
    rf'{CALL_BEGIN}\n\{{"name": "([A-Za-z0-9_.:/-]+)", "arguments": (.*?)\}}\n{CALL_END}', re.DOTALL
)


def calls_in(text: str) -> list[tuple[str, str]]:
    """Returns name and arguments, as JSON text, of each whole call."""
    return _CALL.findall(text)


def is_cut(text: str) -> bool:
    """True if the text ends inside a call."""
    return CALL_BEGIN in _CALL.sub("", text)


def call_id(job_id: str, choice: int, place: int) -> str:
    """Returns the id of a call, which is the same in every attempt."""
    return f"call_{hashlib.sha256(f'{job_id} {choice} {place}'.encode()).hexdigest()[:24]}"
