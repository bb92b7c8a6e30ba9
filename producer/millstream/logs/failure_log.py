"""Logs a repeated failure in few lines: one when it begins, at most one a minute while it lasts, and one when
it is over.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from math import inf
from typing import Literal

import structlog

_log = structlog.get_logger(__name__)
_AGAIN_S = 60.0  # between two lines about the same trouble
_MOST_NAMED = 20  # job ids in a line
_OVER_S = 3.0  # without a failure: some components may work while others fail


class FailureLog:
    """`event`: the line of the failure. `over`: the line of its end, for callers that report success by
    `worked`.
    """

    def __init__(
        self,
        event: str,
        over: str = "",
        *,
        level: Literal["warning", "error"] = "warning",
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._event = event
        self._over = over
        self._level = level
        self._monotonic = monotonic
        self._since = inf  # of the first failure
        self._last = -inf
        self._back = inf  # of the first success behind the last failure
        self._line = -inf
        self._unsaid = 0  # failures since the last line
        self._named: dict[str, None] = {}  # the first jobs of these

    def failed(self, *, of_job: str = "", **fields: object) -> None:
        """Log `fields` if a line is due; `times` is how often it failed since the last one, and `job_ids`
        names the first jobs for which it did.
        """
        now = self._monotonic()
        self._since = min(self._since, now)
        self._last, self._back = now, inf
        self._unsaid += 1
        if of_job and len(self._named) < _MOST_NAMED:
            self._named[of_job] = None
        if now - self._line >= _AGAIN_S:
            named = {"job_ids": list(self._named)} if self._named else {}
            getattr(_log, self._level)(self._event, times=self._unsaid, **named, **fields)
            self._line, self._unsaid = now, 0
            self._named.clear()

    @property
    def is_quiet(self) -> bool:
        """True if the last failure is so long ago that the next one is a line in any case."""
        return self._monotonic() - self._last >= _AGAIN_S

    def worked(self) -> None:
        """Log the end, in the same level as the beginning: who reads one reads the other."""
        if self._since == inf:
            return
        now = self._monotonic()
        self._back = min(self._back, now)
        if now - self._last >= _OVER_S:
            getattr(_log, self._level)(self._over, seconds=round(self._back - self._since, 1))
            self._since, self._line, self._unsaid = inf, -inf, 0


class FailuresOf:
    """A log of failures for each of several things, by name. Nobody has to say that one works, or is gone:
    it is forgotten when it has not failed for a minute.
    """

    def __init__(self, event: str, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._event = event
        self._monotonic = monotonic
        self._logs: dict[str, FailureLog] = {}  # in the order of their last failures

    def failed(self, name: str, *, of_job: str = "", **fields: object) -> None:
        log = self._logs.pop(name, None) or FailureLog(self._event, monotonic=self._monotonic)
        self._logs[name] = log
        log.failed(of_job=of_job, **fields)
        while (oldest := next(iter(self._logs))) != name and self._logs[oldest].is_quiet:
            del self._logs[oldest]


def server_failures() -> FailureLog:
    """Outages of the server. All components share one; otherwise each would report the same outage."""
    return FailureLog("server does not answer", "server answers again")
