"""The line in the log of each request: who asked for what, how it ended, and what it made. Neither prompts
nor keys nor headers stand in it, nor any id that only the client has said.
"""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from millstream.errors import JobError, MillstreamError
from millstream.openai.api_error import ApiError, api_error

_log = structlog.get_logger(__name__)
# some a second, whose answers are in the metrics
_OF_PROBES = {"/healthz", "/readyz", "/health", "/ping", "/metrics"}


@dataclass(slots=True, eq=False)
class AccessLine:
    """Says of a request more than its answer's status. `error`: its code; `reason` has the text of one
    of the server or the store; `failed`: it is not the client's, also if the answer began well.
    """

    tenant: str | None = None
    queue: str | None = None
    job_id: str | None = None
    batch_id: str | None = None
    file_id: str | None = None
    error: str | None = None
    breaks_off: bool | None = None
    reason: str | None = None
    failed: bool = False

    def note(self, error: ApiError | MillstreamError, *, breaks_off: bool = False) -> ApiError:
        """Returns the error as it is answered."""
        told = error if isinstance(error, ApiError) else api_error(error)
        self.error = told.code or type(error).__name__
        self.breaks_off = breaks_off or None
        self.failed = breaks_off or told.status >= 500
        if self.failed and not isinstance(error, ApiError | JobError):  # whose texts may quote a request
            self.reason = str(error)
        return told

    def fields(self) -> dict[str, object]:
        """Those that are known."""
        names = ("tenant", "queue", "job_id", "batch_id", "file_id", "error", "breaks_off", "reason")
        return {name: value for name in names if (value := getattr(self, name)) is not None}


def log_access(line: AccessLine, method: str, route: str, status: int, **more: object) -> None:
    """Log it: at debug for probes, as a warning for what is not the client's fault, else at info."""
    if route in _OF_PROBES:
        tell = _log.debug
    elif line.failed or status >= 500:
        tell = _log.warning
    else:
        tell = _log.info
    tell("request", method=method, route=route, status=status, **more, **line.fields())
