"""Applies the server's replies to the written jobs: the acknowledged length of each log, and the moment when
a job leaves the table.

Writes that the server refuses or does not answer stay in memory and are repeated; the scripts recognise
repetitions.
"""

from __future__ import annotations

import logging
import re
import time
from itertools import takewhile
from typing import Any

import structlog

from millstream.wire.messages.job_messages import ErrorInfo, Request, RequestKind, State
from millstream.wire.messages.sampling import SamplingParams
from millstream.wire.messages.script_replies import AppendOutcome, AppendReply, EndOutcome
from millstream.wire.messages.validation_errors import WHOLE
from millstream.wire.server_errors import is_damage, is_full
from millstream_worker.jobs.job import Job
from millstream_worker.jobs.job_records import MOST_REFUSALS
from millstream_worker.jobs.table import JobTable
from millstream_worker.observe.metrics import Metrics

_log = structlog.get_logger(__name__)

_LEVELS = {
    State.COMPLETED: logging.DEBUG,
    State.CANCELLED: logging.INFO,
    State.EXPIRED: logging.INFO,
    State.FAILED: logging.WARNING,
}

_NAMES = {WHOLE, *Request.model_fields, *SamplingParams.model_fields}
Reply = AppendReply | EndOutcome | Exception


class ReplyHandler:
    def __init__(self, table: JobTable, metrics: Metrics, *, log_payloads: bool) -> None:
        self._table = table
        self._metrics = metrics
        self._log_payloads = log_payloads
        self._troubled: set[str] = set()  # ids of jobs whose last write was refused or not answered

    def take(self, job: Job, reply: Reply, pause_s: float) -> None:
        """Apply one reply. A refused write is due again in `pause_s`."""
        if not self._table.holds(job):
            return
        if not isinstance(reply, Exception):
            self._troubled.discard(job.id)
        match reply:
            case AppendReply(AppendOutcome.FENCED) | EndOutcome.FENCED:
                self._fenced(job)
            case AppendReply(outcome, last_seq):
                self._appended(job, outcome, last_seq)
            case EndOutcome.GAP:
                self._lost_log(job)
                job.log.acknowledged = 0  # the reply to the next append has the log's real length
                self._table.to_write.set()
            case EndOutcome():
                self._ended(job)
            case Exception():
                self._refused(job, reply, pause_s)

    def _appended(self, job: Job, outcome: AppendOutcome, last_seq: int) -> None:
        if outcome is AppendOutcome.GAP:
            self._lost_log(job)
        job.log.acknowledged = min(last_seq, len(job.log.written))
        if job.log.acknowledged and job.times.confirm_first_token():
            self._metrics.first_token(job.lane, job.times.timing)
        if outcome is AppendOutcome.CANCELLED:
            self._table.conclude(job, State.CANCELLED)
            self._close_log(job)
        if not job.log.is_acknowledged or job.phase.has_ended:
            self._table.to_write.set()

    def _close_log(self, job: Job) -> None:
        """Append nothing more: the end carries the rest. A dead letter's has no log, but the text."""
        if job.end.letter is None:
            job.log.merge_open()
        else:
            del job.log.written[job.log.acknowledged :]

    def _lost_log(self, job: Job) -> None:
        self._metrics.gap_fills.inc()
        _log.warning("token log lost its end; it is written again", job_id=job.id, attempt=job.attempt.number)

    def _ended(self, job: Job) -> None:
        self._table.drop(job)
        if job.times.confirm_first_token():
            self._metrics.first_token(job.lane, job.times.timing)
        answered = job.request.kind is not RequestKind.COUNT
        self._metrics.ended(job.lane, job.end.state, job.times.timing, job.outputs.tokens, answered=answered)
        if job.end.letter is not None:
            self._metrics.dead_lettered.inc()
        _log.log(
            _LEVELS[job.end.state],
            "job ended",
            job_id=job.id,
            attempt=job.attempt.number,
            state=job.end.state.value,
            output_tokens=job.outputs.tokens,
            **({"error": job.end.error.code, "field": _field(job.end.error.field)} if job.end.error else {}),
            **(_payload(job) if self._log_payloads else {}),
        )

    def _fenced(self, job: Job) -> None:
        self._table.drop(job)
        self._metrics.fenced.inc()
        _log.warning("job belongs to another attempt now", job_id=job.id, attempt=job.attempt.number)

    def _refused(self, job: Job, error: Exception, pause_s: float) -> None:
        """The server refused the write, or did not answer: it is repeated after a pause."""
        if not any(map(self._table.get, self._troubled)):  # jobs may have left it by other ways
            self._troubled.clear()
            self._metrics.write_troubles.inc()
        self._troubled.add(job.id)
        job.log.not_before = time.monotonic() + pause_s
        job.log.refusals = job.log.refusals + 1 if is_damage(error) else 0
        if job.log.refusals >= MOST_REFUSALS:
            self._give_up(job, error)
        if is_full(error) and job.phase.has_ended:
            self._close_log(job)  # at maxmemory an end passes, an append does not

    def _give_up(self, job: Job, error: Exception) -> None:
        """The job's keys are damaged. If only the log is, the end can still be written; otherwise the job is
        dropped, as nobody can write to it.
        """
        job.log.refusals = 0
        if job.phase.has_ended and len(job.log.written) - job.log.acknowledged <= 1:
            _log.error("job dropped: its keys are damaged", job_id=job.id, error=str(error))
            self._troubled.discard(job.id)
            self._table.drop(job)
            return
        message = f"the job's keys are damaged: {error}"
        self._table.conclude(job, State.FAILED, ErrorInfo(code="log_damaged", message=message))
        self._close_log(job)


def _field(path: str | None) -> str | None:
    """The part of the path that names our own fields: the rest may be a key of the sender's metadata, which
    is never logged.
    """
    return path and ".".join(takewhile(_NAMES.__contains__, re.split(r"[.\[]", path)))


def _payload(job: Job) -> dict[str, Any]:
    """Logged only on request. An error message may quote the request."""
    texts = [row.choice().get("text", "") for row in job.rows]
    return {"texts": texts} | ({"message": job.end.error.message} if job.end.error else {})
