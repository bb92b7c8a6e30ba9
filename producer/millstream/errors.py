"""Every exception Millstream raises, in one tree.

MillstreamError
├── InvalidRequest        a field of the request is wrong; nothing was queued
├── Conflict              the id is taken by a request with another payload
├── QueueFull             the queue's bound or the server's memory is reached; try again after `retry_after_s`
├── QueueMismatch         shards, pub/sub mode or version differ from what the queue was created with
├── Unavailable           the Redis server did not answer in time
├── AccessDenied          the Redis server refused the user, its password or one of its commands
├── MissingExtra          an optional part of the distribution is not installed
├── IncompleteAnswer      an answer that is not whole cannot be parsed
├── ProtocolError         bytes from the wire that are not what the protocol says
└── JobError              about one accepted job (`job_id`)
    ├── NotFound          no job of that id: never submitted, or its result has expired
    ├── NotReady          the job has no result yet
    ├── NotDurable        queued, but not as durably as asked
    ├── NotDead           no dead letter of that id
    ├── CursorExpired     the token log behind the cursor is gone
    ├── JobFailed         terminal: failed, with `reason`
    ├── JobCancelled      terminal: cancelled
    └── JobExpired        terminal: its deadline passed
"""

from __future__ import annotations

import asyncio
import reprlib
from typing import Any

# They end a task or the process. Code that catches all that a message may cause, BaseException too (such as a
# panic of a library in Rust), lets these pass.
ENDS = (asyncio.CancelledError, KeyboardInterrupt, SystemExit, GeneratorExit)


class MillstreamError(Exception):
    """The root of the tree: `except MillstreamError` catches all errors that Millstream raises on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:
        """For errors that cross processes: Exception's own would call the class with the message alone."""
        return _again, (type(self), self.args, self.__dict__)


class InvalidRequest(MillstreamError):
    """A request field is wrong. `field` is its dotted path, `value` the given value."""

    def __init__(self, field: str, value: Any, problem: str) -> None:
        self.field = field
        self.value = value
        self.problem = problem
        named = field if len(field) <= 200 else f"{field[:197]}..."  # it may be any key of a caller's mapping
        super().__init__(f"{named}: {problem} (got {_shown(value)})")


class Conflict(MillstreamError):
    """The id already belongs to a request with another prompt or other sampling parameters."""

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        super().__init__(f"{job_id}: this id was already submitted with another payload; choose another id")


class QueueFull(MillstreamError):
    """The queue is full. Nothing was queued. `reason` names the exhausted bound: `entries` or `bytes` of the
    queue, or the server's `memory` (its maxmemory).
    """

    def __init__(
        self, queue: str, entries: int, held_bytes: int, retry_after_s: float, reason: str = "entries"
    ) -> None:
        self.queue = queue
        self.entries = entries
        self.held_bytes = held_bytes
        self.retry_after_s = retry_after_s
        self.reason = reason
        full = "finds the server at its maxmemory" if reason == "memory" else "is full"
        super().__init__(
            f"queue {queue!r} {full} ({entries} entries, {held_bytes} bytes held); "
            f"retry in {retry_after_s:.1f} s"
        )


class QueueMismatch(MillstreamError):
    """The queue was created with other settings, or no worker takes this protocol version."""


class Unavailable(MillstreamError):
    """The Redis server could not be reached, or did not answer in time."""


class AccessDenied(MillstreamError):
    """The Redis server refused the user: a wrong name or password, or a right that its ACL does not grant.
    Retrying does not help.
    """


class MissingExtra(MillstreamError):
    """An optional part of the distribution is needed and not installed."""

    def __init__(self, extra: str, what: str) -> None:
        self.extra = extra
        super().__init__(f"{what} needs the extra [{extra}]: in a checkout, pip install '.[{extra}]'")


class ProtocolError(MillstreamError):
    """Bytes that violate the protocol: a foreign writer, or a damaged entry."""


class IncompleteAnswer(MillstreamError):
    """A choice is no whole answer, so that it cannot be parsed. `text` is what there is; `cut_by`: `length`
    or `stop`; None: the job did not come to its end, or had no response format, or `schema_error` says why
    its calls do not fit.
    """

    def __init__(self, index: int, text: str, cut_by: str | None, schema_error: str = "") -> None:
        self.index = index
        self.text = text
        self.cut_by = cut_by
        self.schema_error = schema_error
        super().__init__(f"choice {index} is no whole answer: {schema_error or _CUT[cut_by]}")


class JobError(MillstreamError):
    """About one accepted job."""

    def __init__(self, job_id: str, message: str) -> None:
        self.job_id = job_id
        is_plain = len(job_id) <= 220 and job_id.isprintable()  # it may come from a URL
        named = job_id if is_plain else _shown(job_id)
        super().__init__(f"{named}: {message}")


class NotFound(JobError):
    """No job of that id: it was never submitted, or its result has expired."""

    def __init__(self, job_id: str) -> None:
        super().__init__(job_id, "no such job: never submitted to this queue, or its result has expired")


class NotReady(JobError):
    """The job is not terminal yet. `state` is its state; `served` is False if it waits and no living worker
    serves its queue.
    """

    def __init__(
        self, job_id: str, state: str, problem: str = "no result yet", unserved: str | None = None
    ) -> None:
        self.state = state
        self.served = unserved is None
        hint = "" if unserved is None else f"; no worker serves the queue {unserved!r} now"
        super().__init__(job_id, f"{problem}: the job is {state}{hint}")


class NotDurable(JobError):
    """The job is queued and will run, but its `durability` was not reached in time: until it is, a failing
    server may lose the job. Do not submit it under another id; under its own one, which the message names, is
    safe.
    """

    def __init__(self, job_id: str, wanted: str, replicas: int) -> None:
        self.wanted = wanted
        self.replicas = replicas
        super().__init__(
            job_id,
            f"queued, but durability {wanted} was not reached in time ({replicas} replicas acknowledged); "
            f"submit it again with id={job_id.partition('-')[2]!r} to ask once more",
        )


class NotDead(JobError):
    """No dead letter of that id, which is a job's or a letter's."""

    def __init__(self, job_id: str) -> None:
        super().__init__(
            job_id, "no dead letter: it never died, or was requeued, dropped or pushed out by newer ones"
        )


class CursorExpired(JobError):
    """The token log that the cursor points into is gone; read the result instead."""

    def __init__(self, job_id: str, cursor: str) -> None:
        self.cursor = cursor
        super().__init__(job_id, f"the token log behind cursor {cursor} is gone; read the result instead")


class JobFailed(JobError):
    """The job ended as failed. `reason` is a stable code, `result` holds what was produced."""

    def __init__(self, job_id: str, reason: str, message: str, result: Any = None) -> None:
        self.reason = reason
        self.result = result
        super().__init__(job_id, f"failed ({reason}): {message}")


class JobCancelled(JobError):
    """The job was cancelled. `result` holds the partial text, if there is any."""

    def __init__(self, job_id: str, result: Any = None) -> None:
        self.result = result
        super().__init__(job_id, "cancelled")


class JobExpired(JobError):
    """The job's deadline passed before it was done. `result` holds the partial text, if there is any."""

    def __init__(self, job_id: str, result: Any = None) -> None:
        self.result = result
        super().__init__(job_id, "its deadline passed")


_CUT = {
    "length": "it was cut at max_tokens or the end of the context; allow more tokens",
    "stop": "it was cut by a stop string or a stop token; leave that out",
    None: "its job did not come to its end, or had no response_format",
}


def _again(kind: type[MillstreamError], args: tuple[Any, ...], fields: dict[str, Any]) -> MillstreamError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(fields)
    return error


class _ShortRepr(reprlib.Repr):
    """A container of millions is not written out to be cut. Of an image only its size is shown, and the media
    type of its data: URL.
    """

    def repr_bytes(self, value: bytes, _level: int) -> str:
        return repr(value) if len(value) <= _FEW_BYTES else f"{len(value):,} bytes"

    def repr_str(self, value: str, level: int) -> str:
        if value[:5].lower() != "data:":
            return super().repr_str(value, level)
        return f"{value[:60].partition(',')[0]!r} of {len(value):,} characters"


_FEW_BYTES = 16
_SHORT = _ShortRepr()
_SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxdict = 20
_SHORT.maxstring = _SHORT.maxother = 80


def _shown(value: Any) -> str:
    try:
        if isinstance(value, str) and value[:5].lower() != "data:":
            text = repr(value[:80])  # it may be the 16 MiB of a whole message
        else:
            text = _SHORT.repr(value)
    except (ValueError, RecursionError):  # Python prints no number of many thousand digits
        text = f"a value of type {type(value).__name__} that is too long to show"
    return text if len(text) <= 80 else f"{text[:77]}..."
