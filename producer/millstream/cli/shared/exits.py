"""Exit codes for scripts; listed in `millstream --help`."""

from __future__ import annotations

from enum import IntEnum
from typing import Self

from millstream.errors import (
    Conflict,
    InvalidRequest,
    JobCancelled,
    JobExpired,
    JobFailed,
    MillstreamError,
    MissingExtra,
    NotDead,
    NotFound,
    NotReady,
    QueueFull,
)


class ExitCode(IntEnum):
    """Each with its meaning, for the help."""

    meaning: str

    def __new__(cls, code: int, meaning: str) -> Self:
        made = int.__new__(cls, code)
        made._value_, made.meaning = code, meaning
        return made

    OK = 0, "done; for a batch: every line has its answer or its error row"
    FAILED = 1, "the job failed; a batch: no line has an answer or, with --strict, there are error rows"
    USAGE = 2, "a wrong argument or request field"
    UNAVAILABLE = 3, "server, worker, model or disk cannot be used now; try again"
    NOT_FOUND = 4, "no such job or dead letter, or its result has expired"
    NOT_READY = 5, "the job has not ended yet"
    CANCELLED = 6, "the job was cancelled"
    EXPIRED = 7, "the job's deadline passed"
    REFUSED = 8, "the queue is full, or the id is taken by another request"
    INTERRUPTED = 130, "interrupted; what was submitted goes on"


# All others are UNAVAILABLE: it is server, worker, model or disk.
_CODES: tuple[tuple[type[MillstreamError], ExitCode], ...] = (
    (InvalidRequest, ExitCode.USAGE),
    (MissingExtra, ExitCode.USAGE),
    (NotFound, ExitCode.NOT_FOUND),
    (NotDead, ExitCode.NOT_FOUND),
    (NotReady, ExitCode.NOT_READY),
    (JobFailed, ExitCode.FAILED),
    (JobCancelled, ExitCode.CANCELLED),
    (JobExpired, ExitCode.EXPIRED),
    (QueueFull, ExitCode.REFUSED),
    (Conflict, ExitCode.REFUSED),
)


def exit_code(error: MillstreamError) -> ExitCode:
    """The exit code of a command that ended with this error."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), ExitCode.UNAVAILABLE)


def epilog() -> str:
    """The table for --help."""
    return "Exit codes:\n\n" + "\n".join(f"- {code:d}: {code.meaning}" for code in ExitCode)
