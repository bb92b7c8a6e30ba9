"""Finds the calls of tools in an answer's text, in the form to which the grammar of tools keeps it."""

from __future__ import annotations

import hashlib

from millstream.wire.messages.tools import CALL_BEGIN, CALL_END
from millstream_worker.engine.grammars.partial import written_calls


def calls_in(text: str) -> list[tuple[str, str]]:
    """Returns name and arguments, as JSON text, of each whole call."""
    return written_calls.calls_in(text, CALL_BEGIN, CALL_END)


def is_cut(text: str) -> bool:
    """True if the text ends inside a call."""
    return CALL_BEGIN in written_calls.without_calls(text, CALL_BEGIN, CALL_END)


def call_id(job_id: str, choice: int, place: int) -> str:
    """Returns the id of a call, which is the same in every attempt."""
    return f"call_{hashlib.sha256(f'{job_id} {choice} {place}'.encode()).hexdigest()[:24]}"
