"""Measures the gateway, in a registry that is passed in. No tenant's name stands in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from millstream.openai.fields.field_check import is_ignored_by_rule
from millstream.wire.loop_gaps import LoopGaps

CLIENT_GONE = 499  # as nginx writes it
OTHER_FIELD = "other"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60, 120, 300, 600)


class GatewayMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        own: dict[str, Any] = {"namespace": "millstream", "subsystem": "gateway", "registry": registry}
        self._requests = Counter("requests", "Requests by route and status", ("route", "status"), **own)
        self._seconds = Histogram(
            "request_seconds",
            "From a request's headers to the end of its answer",
            ("route",),
            buckets=_SECONDS,
            **own,
        )
        self.first_event = Histogram(
            "time_to_first_event_seconds",
            "From a request's headers to the first event of its stream",
            buckets=_SECONDS,
            **own,
        )
        self.streams = Gauge("streams", "Event streams under way", **own)
        self.joined = Counter(
            "joined_requests", "Repeated requests that got the job of an earlier one", **own
        )
        self.gone = Counter("cancelled_jobs", "Jobs cancelled because the client disconnected", **own)
        self.unreadable = Counter(
            "unreadable_requests",
            "Requests and lines of batches that failed because reading them raised what nobody expected",
            **own,
        )
        self.open_batches = Gauge("open_batches", "Batches that have not ended, of all gateways", **own)
        self.loop_gaps = LoopGaps()
        Gauge(
            "loop_gap_seconds",
            "Longest time of the last minute or two that the event loop did not run",
            **own,
        ).set_function(lambda: self.loop_gaps.longest_s)
        self._ignored = Counter("ignored_fields", "Fields of requests that have no effect", ("field",), **own)
        self._batch_rows = Counter("batch_rows", "Rows that this gateway has written", ("result",), **own)

    def count_ignored(self, names: Iterable[str]) -> None:
        """Counts the fields without effect of one request. Names that no server has are one."""
        for name in names:
            self._ignored.labels(name if is_ignored_by_rule(name) else OTHER_FIELD).inc()

    def answered(self, route: str, status: int, seconds: float) -> None:
        """Counts an answered request. `status` 0: the client disconnected before it had an answer."""
        self._requests.labels(route, str(status or CLIENT_GONE)).inc()
        self._seconds.labels(route).observe(seconds)

    def count_rows(self, results: Mapping[str, int]) -> None:
        """Counts rows of batches by result: completed, failed, expired, cancelled."""
        for result, count in results.items():
            self._batch_rows.labels(result).inc(count)
