"""Exit codes for scripts; listed in `millstream --help`."""

from __future__ import annotations

from enum import IntEnum

from millstream.cli.embedded.demo_model import ModelUnavailable
from millstream.cli.embedded.embedded_server import ServerFailed, ServerInUse
from millstream.cli.embedded.local_worker import WorkerEnded
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
    Unavailable,
)


class ExitCode(IntEnum):
    OK = 0
    FAILED = 1
    USAGE = 2
    UNAVAILABLE = 3
    NOT_FOUND = 4
    NOT_READY = 5
    CANCELLED = 6
    EXPIRED = 7
    REFUSED = 8
    INTERRUPTED = 130


MEANINGS = {
    ExitCode.OK: "done; for a batch: every line has its answer or its error row",
    ExitCode.FAILED: "the job failed; a batch: no line has an answer or, with --strict, there are error rows",
    ExitCode.USAGE: "a wrong argument or request field",
    ExitCode.UNAVAILABLE: "server, worker, model or disk cannot be used now; try again",
    ExitCode.NOT_FOUND: "no such job or dead letter, or its result has expired",
    ExitCode.NOT_READY: "the job has not ended yet",
    ExitCode.CANCELLED: "the job was cancelled",
    ExitCode.EXPIRED: "the job's deadline passed",
    ExitCode.REFUSED: "the queue is full, or the id is taken by another request",
    ExitCode.INTERRUPTED: "interrupted; what was submitted goes on",
}

_CODES: tuple[tuple[type[MillstreamError], ExitCode], ...] = (
    (InvalidRequest, ExitCode.USAGE),
    (MissingExtra, ExitCode.USAGE),
    (Unavailable, ExitCode.UNAVAILABLE),
    (ServerInUse, ExitCode.UNAVAILABLE),
    (ServerFailed, ExitCode.UNAVAILABLE),
    (WorkerEnded, ExitCode.UNAVAILABLE),
    (ModelUnavailable, ExitCode.UNAVAILABLE),
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
    lines = "\n".join(f"- {code:d}: {meaning}" for code, meaning in MEANINGS.items())
    return f"Exit codes:\n\n{lines}"
