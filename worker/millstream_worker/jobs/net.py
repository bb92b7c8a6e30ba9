"""The net around the reading of messages and of kept results: an exception that a message causes ends the job
of that message, and nothing else; one that a kept result causes ends the use of it. The text of an unexpected
exception is never shown: it may quote the message.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator

import structlog

from millstream.errors import ENDS, InvalidRequest
from millstream.wire.messages.job_messages import ErrorInfo, State
from millstream.wire.messages.validation_errors import beyond
from millstream_worker.jobs.context_exceeded import ContextExceeded
from millstream_worker.jobs.job import Job
from millstream_worker.observe.metrics import Metrics

_log = structlog.get_logger(__name__)
_FRAMES = 20  # of a traceback, the innermost


class Net:
    def __init__(self, metrics: Metrics) -> None:
        self.metrics = metrics
        self._known: set[tuple[str, str]] = set()  # exceptions that were logged: type and place

    @contextlib.contextmanager
    def around(self, job: Job) -> Iterator[None]:
        """Encloses code that reads the job's message: an exception ends the job, and is not raised."""
        try:
            yield
        except InvalidRequest as error:
            job.conclude(State.FAILED, self.refusal(error))
        except (RecursionError, OverflowError) as error:
            job.conclude(State.FAILED, self.refusal(beyond(error)))
        except ENDS:
            raise
        except BaseException as error:  # noqa: BLE001 - a panic of a library in Rust is no Exception
            job.conclude(State.FAILED, self.unexpected(job, type(error).__name__, _trace(error)))
            job.rows.clear()  # they may be half made

    @contextlib.contextmanager
    def around_kept(self, job: Job) -> Iterator[None]:
        """Encloses code that reads a result kept for the job: an exception is counted and not raised, and the
        job is to be computed.
        """
        try:
            yield
        except ENDS:
            raise
        except BaseException as error:  # noqa: BLE001 - as above
            self.metrics.cache_damaged.inc()
            event = "a kept result is damaged; its job is computed"
            self._tell(event, job, type(error).__name__, _trace(error))

    def refusal(self, error: InvalidRequest) -> ErrorInfo:
        """Returns what the sender is told. A template may have put halves of surrogate pairs into the text,
        which no message can carry.
        """
        message = str(error).encode("utf-8", "backslashreplace").decode()
        code = error.code if isinstance(error, ContextExceeded) else "bad_request"
        return ErrorInfo(code=code, message=message, field=error.field)

    def unexpected(self, job: Job, kind: str, trace: str) -> ErrorInfo:
        """Count and log an exception of this kind, here or in the engine. Returns what the sender is told."""
        self.metrics.unreadable.inc()
        self._tell("a request cannot be read; its job fails", job, kind, trace)
        message = (
            f"reading this request raised {kind}, which is not expected of any: change it, or tell the "
            "operator; the worker's log has the place"
        )
        return ErrorInfo(code="unreadable_request", message=message)

    def _tell(self, event: str, job: Job, kind: str, trace: str) -> None:
        """Once a kind and place."""
        place = kind, trace.rpartition("  File ")[2]
        if place not in self._known:
            self._known.add(place)
            _log.error(event, job_id=job.id, error=kind, trace=trace)


def _trace(error: BaseException) -> str:
    return "".join(traceback.format_tb(error.__traceback__, -_FRAMES))
