"""Shows queues as Prometheus series: the same names, labels and meanings in whichever process exports them (a
worker, a gateway, `millstream queue --metrics-port`). It does not read the server. A figure that could not be
read has no series.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from millstream.wire.keys import LANES, Lane
from millstream.wire.state.heartbeat import DRAINING, LOADING, SERVING, STARTING, WorkerFacts
from millstream.wire.state.queue_counts import LaneNumbers, QueueNumbers

FRESH_S = 10.0  # older figures are not shown: a worker, which measures every 5 s, waits for its server
MOST_TENANTS = 20  # with series of their own, those with the most jobs
MOST_NAMES = 10  # the same of states, versions and reasons, which other programs' heartbeats may invent
OTHERS = "(others)"
_LONGEST = 200  # characters of a label's value
_STATES = (LOADING, STARTING, SERVING, DRAINING)  # these have a series at 0, too: an alert may ask for it

_SERIES: dict[str, tuple[str, tuple[str, ...]]] = {
    "queue_up": ("1: the queue can be read from its server; 0: it cannot, and has no other series", ()),
    "jobs_queued": ("Jobs of the whole queue that no worker has taken", ("lane",)),
    "jobs_running": ("Jobs of the whole queue that a worker has, in its batch or next", ("lane",)),
    "oldest_queued_age_seconds": ("Age of the oldest job that no worker has taken; 0: none waits", ("lane",)),
    "jobs_delayed": ("Jobs that wait for a retry", ()),
    "dead_letters": ("Dead letters that nobody has requeued or dropped", ()),
    "tenant_jobs_parked": (
        f"Jobs that wait beside a lane, by tenant: the {MOST_TENANTS} with the most, and {OTHERS}",
        ("tenant",),
    ),
    "held_bytes": ("Bytes of requests whose jobs have not ended", ()),
    "fullest_shard_held_bytes": ("Bytes of such requests in the shard that holds most", ()),
    "shards": ("Shards of the queue; 0: nobody has used it yet", ()),
    "shard_limit_bytes": (
        "Bytes of requests beyond which a shard takes no more jobs, by clients' default",
        (),
    ),
    "shard_limit_jobs": (
        "Jobs waiting and running beyond which a shard takes no more, by clients' default",
        (),
    ),
    "workers": ("Living workers of the queue, in any state", ()),
    "worker_states": ("Living workers by state: loading, starting, serving, draining", ("state",)),
    "worker_versions": ("Living workers by version of millstream", ("version",)),
    "worker_fallbacks": ("Living workers that compute slower than they could, by their reasons", ("reason",)),
    "queue_models": ("Models of the living workers; more than 1 while one replaces another", ()),
}


@dataclass(frozen=True, slots=True)
class QueueSnapshot:
    """A queue's figures of one moment; None, or a lane left out: not known to whoever shows them."""

    lanes: Mapping[Lane, LaneNumbers]
    oldest_s: Mapping[Lane, float]  # ages of the oldest waiting jobs; 0.0: none waits
    workers: Sequence[WorkerFacts] | None = None
    models: int | None = None
    numbers: QueueNumbers | None = None
    shards: int | None = None
    shard_limit_bytes: int | None = None
    shard_limit_jobs: int | None = None
    reasons: bool = True  # show the texts of workers' fallbacks


class QueueSeries(Collector):
    """Series of the last snapshots shown, by queue; read by the registry, from any thread."""

    def __init__(self, registry: CollectorRegistry, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._shown: dict[str, tuple[float, QueueSnapshot | None]] = {}
        registry.register(self)

    def show(self, queue: str, snapshot: QueueSnapshot | None) -> None:
        """Replaces the queue's series; None: it could not be read."""
        self._shown[queue] = self._monotonic(), snapshot

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """All series, without values: the registry asks for their names."""
        return _families().values()

    def collect(self) -> Iterable[GaugeMetricFamily]:
        families = _families()
        oldest = self._monotonic() - FRESH_S
        for queue, (at, snapshot) in list(self._shown.items()):
            for name, labels, value in _samples(snapshot if at >= oldest else None):
                if value is not None:
                    families[name].add_metric((queue, *labels), value)
        return [one for one in families.values() if one.samples]


def _families() -> dict[str, GaugeMetricFamily]:
    return {
        name: GaugeMetricFamily(f"millstream_{name}", text, labels=("queue", *labels))
        for name, (text, labels) in _SERIES.items()
    }


_Sample = tuple[str, tuple[str, ...], float | None]


def _samples(one: QueueSnapshot | None) -> Iterator[_Sample]:
    yield "queue_up", (), int(one is not None)
    if one is None:
        return
    for lane in LANES:
        counts = one.lanes.get(lane, LaneNumbers(None, None))
        yield "jobs_queued", (lane,), counts.waiting
        yield "jobs_running", (lane,), counts.running
        yield "oldest_queued_age_seconds", (lane,), one.oldest_s.get(lane)
    yield "queue_models", (), one.models
    for name in ("shards", "shard_limit_bytes", "shard_limit_jobs"):
        yield name, (), getattr(one, name)
    if one.numbers is not None:
        yield from _of_numbers(one.numbers)
    if one.workers is not None:
        yield from _of_workers(one.workers, reasons=one.reasons)


def _of_numbers(numbers: QueueNumbers) -> Iterator[_Sample]:
    yield "jobs_delayed", (), numbers.delayed
    yield "dead_letters", (), numbers.dead
    yield "held_bytes", (), numbers.held_bytes
    yield "fullest_shard_held_bytes", (), numbers.fullest_bytes
    yield from _by_name("tenant_jobs_parked", Counter(numbers.tenants or {}), MOST_TENANTS)


def _of_workers(workers: Sequence[WorkerFacts], *, reasons: bool) -> Iterator[_Sample]:
    yield "workers", (), len(workers)
    states = Counter(dict.fromkeys(_STATES, 0))
    states.update(one.state for one in workers)
    yield from _by_name("worker_states", states)
    yield from _by_name("worker_versions", Counter(one.package or "unknown" for one in workers))
    if reasons:
        slower = Counter(one.fallbacks for one in workers if one.fallbacks)
        yield from _by_name("worker_fallbacks", slower)


def _by_name(series: str, counts: Counter[str], most: int = MOST_NAMES) -> Iterator[_Sample]:
    """A series for each of the names that count most; the rest together."""
    named: Counter[str] = Counter()
    for name, count in counts.most_common():
        named[name[:_LONGEST] if len(named) < most else OTHERS] += count
    return ((series, (name,), count) for name, count in named.items())
