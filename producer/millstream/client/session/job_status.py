"""A job's status, as its producer sees it between submit and result."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from millstream.wire.keys import Lane
from millstream.wire.messages.job_messages import State
from millstream.wire.messages.script_replies import JobRecord


@dataclass(frozen=True, slots=True)
class JobStatus:
    """Times are Unix milliseconds of the server's clock; None: not yet."""

    id: str
    state: State
    lane: Lane | str  # a newer version's, by its name
    attempt: int  # how many were started
    submits: int  # how often this id was submitted
    worker: str | None  # that runs it, or that ended it
    cancel_requested: bool  # and the worker has not ended the job yet
    submitted_ms: int
    started_ms: int | None  # a worker first took it
    compiled_ms: int | None  # its response_format was compiled; None: it has none, or as the next
    admitted_ms: int | None  # it first entered the batch; known once it has tokens
    first_token_ms: int | None  # sent to its readers; of jobs without a stream: sampled
    finished_ms: int | None
    requeued_from: str | None  # the dead-lettered job that it repeats

    @classmethod
    def of(cls, record: JobRecord) -> JobStatus:
        own: dict[str, Any] = {
            "id": record.job_id,
            "lane": Lane(record.lane) if record.lane in tuple(Lane) else record.lane,
            "worker": record.owner or None,
            "cancel_requested": record.cancelled,
        }
        others = {field.name for field in fields(cls)} - own.keys()
        return cls(**{name: getattr(record, name) for name in others} | own)
