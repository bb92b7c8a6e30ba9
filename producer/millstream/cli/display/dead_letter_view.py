"""Dead letters on standard output: lines for people, mappings for programs.

Anybody who may write to the queue chose these texts, so only printable characters reach a terminal.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from millstream.cli.display.terminal import answers, plain
from millstream.client.session.job_status import JobStatus
from millstream.errors import ProtocolError
from millstream.wire.state.dead_letter import DeadLetter

SHOWN_CHARACTERS = 2000  # of one text
SHOWN_ITEMS = 50  # of one list
SHOWN_BYTES = 200  # of a payload that is not a request


def print_line(letter: DeadLetter) -> None:
    when, counts = _time(letter.dead_ms), f"attempts {letter.attempts}  died {letter.died}"
    job = plain(letter.job_id or "(no job)")
    answers.out(f"{letter.id}  {when}  {plain(letter.reason)[:80]}  {counts}  {letter.size:,} bytes  {job}")


def print_letter(letter: DeadLetter, status: JobStatus | None) -> None:
    lines = {
        "letter": letter.id,
        "job": letter.job_id or "none: a foreign entry",
        "reason": letter.reason,
        "died at": _time(letter.dead_ms),
        "attempts": letter.attempts,
        "died": f"{letter.died} times with its engine or worker",
        "lane": letter.lane,
        "version": letter.version,
        "size": f"{letter.size:,} bytes",
    }
    if status is not None:
        lines |= {"submitted": _time(status.submitted_ms), "worker": status.worker or ""}
        lines |= {"requeued": f"from {status.requeued_from}"} if status.requeued_from else {}
    for name, value in lines.items():
        answers.out(f"{name:<10}{plain(str(value))[:SHOWN_CHARACTERS]}")
    answers.out("request")
    request = _request(letter)
    if isinstance(request, str):
        answers.out(f"  {plain(request)}")
    else:
        if "images" in request:
            request["images"] = [f"{len(image.data):,} bytes" for image in letter.request.images]
        for line in json.dumps(_cut(request), ensure_ascii=False, indent=2).splitlines():
            answers.out(f"  {plain(line)}")


def as_mapping(letter: DeadLetter, status: JobStatus | None = None) -> dict[str, Any]:
    """JSON-ready; with the request if the letter has it."""
    fields = asdict(letter)
    del fields["payload"]
    if letter.payload:
        request = _request(letter)
        fields |= {"unreadable": request} if isinstance(request, str) else {"request": request}
    if status is not None:
        fields |= {"submitted_ms": status.submitted_ms, "requeued_from": status.requeued_from}
    return fields


def _request(letter: DeadLetter) -> dict[str, Any] | str:
    """The request; or a text that says why it cannot be read."""
    try:
        return letter.request.model_dump(mode="json", exclude_defaults=True)
    except ProtocolError as error:
        return f"not readable ({error}); it begins with {letter.payload[:SHOWN_BYTES]!r}"


def _cut(value: Any) -> Any:
    match value:
        case str() if len(value) > SHOWN_CHARACTERS:
            return f"{value[:SHOWN_CHARACTERS]}… ({len(value):,} characters)"
        case list() if len(value) > SHOWN_ITEMS:
            return [*map(_cut, value[:SHOWN_ITEMS]), f"… ({len(value):,} items)"]
        case list():
            return [_cut(item) for item in value]
        case dict():
            return {name: _cut(item) for name, item in value.items()}
        case _:
            return value


def _time(unix_ms: int) -> str:
    try:
        return f"{datetime.fromtimestamp(unix_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}Z"
    except (ValueError, OverflowError, OSError):  # a foreign entry may have any id
        return f"{unix_ms} ms"
