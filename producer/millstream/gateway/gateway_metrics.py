"""Measures the gateway, in a registry that is passed in. No tenant's name stands in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from millstream.openai.fields.field_check import is_ignored_by_rule
from millstream.wire.loop_gaps import LoopGaps

CLIENT_GONE = 499  # as nginx writes it
OTHER_FIELD = "other"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60, 120, 300, 600)


class GatewayMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = Counter(
            "millstream_gateway_requests",
            "Requests by route and status",
            ("route", "status"),
            registry=registry,
        )
        self._seconds = Histogram(
            "millstream_gateway_request_seconds",
            "From a request's headers to the end of its answer",
            ("route",),
            registry=registry,
            buckets=_SECONDS,
        )
        self.first_event = Histogram(
            "millstream_gateway_time_to_first_event_seconds",
            "From a request's headers to the first event of its stream",
            registry=registry,
            buckets=_SECONDS,
        )
        self.streams = Gauge("millstream_gateway_streams", "Event streams under way", registry=registry)
        self.joined = Counter(
            "millstream_gateway_joined_requests",
            "Repeated requests that got the job of an earlier one",
            registry=registry,
        )
        self.gone = Counter(
            "millstream_gateway_cancelled_jobs",
            "Jobs cancelled because the client disconnected",
            registry=registry,
        )
        self.unreadable = Counter(
            "millstream_gateway_unreadable_requests",
            "Requests and lines of batches that failed because reading them raised what nobody expected",
            registry=registry,
        )
        self.open_batches = Gauge(
            "millstream_gateway_open_batches",
            "Batches that have not ended, of all gateways",
            registry=registry,
        )
        self.loop_gaps = LoopGaps()
        Gauge(
            "millstream_gateway_loop_gap_seconds",
            "Longest time of the last minute or two that the event loop did not run",
            registry=registry,
        ).set_function(lambda: self.loop_gaps.longest_s)
        self._ignored = Counter(
            "millstream_gateway_ignored_fields",
            "Fields of requests that have no effect",
            ("field",),
            registry=registry,
        )
        self._batch_rows = Counter(
            "millstream_gateway_batch_rows",
            "Rows that this gateway has written",
            ("result",),
            registry=registry,
        )

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
