"""The end of a job."""

from __future__ import annotations

from dataclasses import dataclass

from millstream.wire.messages.job_messages import ErrorInfo, State

ERRORS = {
    State.CANCELLED: ErrorInfo(code="cancelled", message="it was cancelled before it was done"),
    State.EXPIRED: ErrorInfo(code="expired", message="its deadline passed before it was done"),
}
ENTRY_LOST = ErrorInfo(
    code="entry_lost",
    message="the job's entry was deleted from its lane (XDEL, XTRIM or XADD MAXLEN) before it was done; "
    "submit the request again under another id",
)


@dataclass(frozen=True, slots=True)
class JobEnd:
    state: State
    error: ErrorInfo | None = None
    letter: str | None = None  # dead letter: the reason


UNDECIDED = JobEnd(State.RUNNING)
