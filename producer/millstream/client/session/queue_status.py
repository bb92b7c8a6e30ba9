"""A queue as its producers and operators see it: waiting and running jobs, and its workers.

Fields that the client's role may not read are None; `unread` has the reason for each.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from redis.exceptions import NoPermissionError

from millstream.client.session.job_reader import QueueJobs
from millstream.wire.keys import LANES, Lane, ShardKeys
from millstream.wire.state.heartbeat import DRAINING, Heartbeat, WorkerFacts, models_of, read_all_workers
from millstream.wire.state.queue_counts import (
    LaneNumbers,
    QueueNumbers,
    first_unread,
    read_lanes,
    read_numbers,
    total,
)
from millstream.wire.state.queue_info import read_queue

OTHER_ROLE = "needs the operator or observer role"
NO_RIGHT = "this user may not read it"
NO_REPORT = "no living worker reports it; needs the observer role"


@dataclass(frozen=True, slots=True)
class LaneStatus:
    """`oldest_s`: the age of its oldest waiting job, within some seconds; None: none waits."""

    lane: Lane
    waiting: int | None  # jobs that no worker has; without those that wait for a retry
    running: int | None  # jobs that a worker has, in its batch or next
    oldest_s: float | None


@dataclass(frozen=True, slots=True)
class WorkerStatus(WorkerFacts):
    """A worker's last heartbeat. Rates are means between its last two."""

    name: str
    prompt_tokens_per_s: float  # computed
    output_tokens_per_s: float
    prefix_hit_rate: float | None  # share of the prompt tokens found in the KV cache; None: none looked up
    started_ms: int | None  # Unix milliseconds of the server's clock
    versions: tuple[int, int]  # the first and the last message version that it takes
    heartbeat_s: float | None = None  # age of this heartbeat; None: an older worker does not report it
    late: bool = False  # the next one should have come: the worker may be gone

    @property
    def draining(self) -> bool:
        return self.state == DRAINING


@dataclass(frozen=True, slots=True)
class QueueStatus(QueueNumbers):
    """A queue over all its shards. `unread`: the reason why a field is None, by its name."""

    queue: str
    at_ms: int  # Unix milliseconds of the server's clock
    shards: int  # 0: nobody has used the queue yet
    model: str  # its name; "": no worker has loaded one yet
    model_digest: str  # of its checkpoint
    models: tuple[str, ...]  # of the living workers; several while one replaces another
    lanes: tuple[LaneStatus, ...]
    max_bytes: int  # of a shard, by this client's options: more is refused
    workers: tuple[WorkerStatus, ...] | None  # the living ones, by name
    unread: Mapping[str, str]
    loading: tuple[WorkerStatus, ...] | None = ()  # workers that load their model and have not served yet

    @property
    def waiting(self) -> int | None:
        """Over all lanes, with those that wait for a retry."""
        return total([self.delayed, *(lane.waiting for lane in self.lanes)])


async def queue_status(jobs: QueueJobs, *, tenants: bool = True) -> QueueStatus:
    """Reads the queue, with its `tenants` only where they are asked for. Raises Unavailable, AccessDenied
    (not even the queue's metadata may be read).
    """
    session = jobs.session
    with session.reach():
        info = await read_queue(session.redis, jobs.queue)
        shards = info.shard_keys(jobs.queue) if info else []
        at_ms = await session.now_ms()
        lanes = await read_lanes(session.redis, *shards)
        numbers = await read_numbers(session.redis, *shards, tenants=tenants)
        beats: list[Heartbeat] | None = None
        loading: list[Heartbeat] | None = None
        with contextlib.suppress(NoPermissionError):
            beats, loading = await read_all_workers(session.redis, *shards)
        unread = _unread(lanes.values(), numbers, beats)
        found = [
            await _lane(session.redis, shards, lane, lanes[lane], beats, at_ms, unread) for lane in LANES
        ]
    return QueueStatus(
        queue=jobs.queue,
        at_ms=at_ms,
        shards=len(shards),
        model=info.model if info else "",
        model_digest=info.model_digest if info else "",
        models=tuple(sorted(models_of(beats or ()).values())),
        lanes=tuple(found),
        max_bytes=session.options.max_bytes,
        workers=None if beats is None else tuple(_worker(one, at_ms) for one in beats),
        unread=unread,
        loading=None if loading is None else tuple(_worker(one, at_ms) for one in loading),
        **asdict(numbers),
    )


def _unread(lanes: Any, numbers: QueueNumbers, beats: Sequence[Heartbeat] | None) -> dict[str, str]:
    unreadable = any(lane.waiting is None for lane in lanes)
    values = {"lanes": None if unreadable else 0, "workers": beats} | asdict(numbers)
    others = ("dead", "tenants")
    return {
        name: OTHER_ROLE if name in others else NO_RIGHT for name, value in values.items() if value is None
    }


async def _lane(
    redis: Any,
    shards: Sequence[ShardKeys],
    lane: Lane,
    numbers: LaneNumbers,
    beats: Sequence[Heartbeat] | None,
    at_ms: int,
    unread: dict[str, str],
) -> LaneStatus:
    since_ms = None
    if numbers.waiting:
        since_ms = min(filter(None, (one.oldest_ms(lane) for one in beats or ())), default=None)
        if since_ms is None:
            since_ms = await _oldest_entry_ms(redis, shards, lane)
            if since_ms is None:
                unread["oldest_s"] = NO_REPORT
    oldest_s = None if since_ms is None else max(0, at_ms - since_ms) / 1000
    return LaneStatus(lane, numbers.waiting, numbers.running, oldest_s)


async def _oldest_entry_ms(redis: Any, shards: Sequence[ShardKeys], lane: Lane) -> int | None:
    """Read from the lanes, which only some roles may do: for the case that no worker reports it."""
    times = []
    for keys in shards:
        with contextlib.suppress(NoPermissionError):
            if (oldest := await first_unread(redis, keys.lane(lane))) is not None:
                times.append(int(oldest[0].partition(b"-")[0]))
    return min(times, default=None)


def _worker(beat: Heartbeat, at_ms: int) -> WorkerStatus:
    age_ms = beat.age_ms(at_ms)
    names = {field.name for field in fields(WorkerStatus)} & {field.name for field in fields(beat)}
    own: dict[str, Any] = {
        "prompt_tokens_per_s": beat.prompt_per_s,
        "output_tokens_per_s": beat.output_per_s,
        "prefix_hit_rate": beat.prefix_hit / beat.prefix_queried if beat.prefix_queried else None,
        "started_ms": beat.started_ms or None,
        "versions": (beat.version_min, beat.version_max),
        "heartbeat_s": None if age_ms is None else age_ms / 1000,
        "late": beat.is_late(at_ms),
    }
    return WorkerStatus(**{name: getattr(beat, name) for name in names} | own)
