"""Counts of a queue's jobs and bytes, for people and autoscalers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from redis.exceptions import NoPermissionError, ResponseError

from millstream.errors import ProtocolError
from millstream.wire.keys import GROUP, LANES, RELEASED, Lane, ShardKeys
from millstream.wire.messages.record import number


@dataclass(frozen=True, slots=True)
class LaneNumbers:
    """Counts of one lane over all shards; None: this user may not read it."""

    waiting: int | None  # entries that no worker has, and what is parked beside them
    running: int | None  # entries that a worker has


@dataclass(frozen=True, slots=True)
class QueueNumbers:
    """Counts of a queue over all shards; None: this user may not read it."""

    delayed: int | None  # jobs that wait for a retry
    held_bytes: int | None  # of requests whose jobs have not ended
    fullest_bytes: int | None  # the same, of the shard that holds most: its bound is reached first
    dead: int | None  # dead letters
    tenants: dict[str, int] | None  # jobs parked beyond a lane's window, by tenant


async def read_lanes(redis: Any, *shards: ShardKeys) -> dict[Lane, LaneNumbers]:
    """Reads the counts of all lanes in one round trip."""
    places = [(lane, keys) for keys in shards for lane in LANES]
    async with redis.pipeline(transaction=False) as pipeline:
        for lane, keys in places:
            pipeline.xlen(keys.lane(lane))
            pipeline.xinfo_consumers(keys.lane(lane), GROUP)
            pipeline.zcard(keys.parked(lane))
        replies = await pipeline.execute(raise_on_error=False)
    found: dict[Lane, list[tuple[Any, Any, Any]]] = {lane: [] for lane in LANES}
    for place, (lane, _) in enumerate(places):
        entries, consumers, parked = replies[3 * place : 3 * place + 3]
        found[lane].append((_seen(entries), _held(consumers), _seen(parked)))
    return {lane: _lane(rows) for lane, rows in found.items()}


def _lane(shards: Sequence[tuple[Any, Any, Any]]) -> LaneNumbers:
    waiting, running = 0, 0
    for entries, held, parked in shards:
        if None in (entries, held, parked):
            return LaneNumbers(None, None)
        running += held
        waiting += max(0, entries - held) + parked
    return LaneNumbers(waiting, running)


async def read_numbers(redis: Any, *shards: ShardKeys, tenants: bool = True) -> QueueNumbers:
    """Reads the counts of a queue in one round trip; those of its `tenants` only if they are asked for.
    Raises ProtocolError if what is stored is no count.
    """
    lanes = LANES if tenants else ()
    async with redis.pipeline(transaction=False) as pipeline:
        for keys in shards:
            pipeline.zcard(keys.delayed)
            pipeline.get(keys.held_bytes)
            pipeline.xlen(keys.dead)
            for lane in lanes:
                pipeline.hgetall(keys.tenants(lane))
        replies = await pipeline.execute(raise_on_error=False)
    width = 3 + len(lanes)
    replies = [_seen(b"0" if reply is None else reply) for reply in replies]  # no counter yet
    held = [count_at(keys.held_bytes, size) for size, keys in zip(replies[1::width], shards, strict=True)]
    return QueueNumbers(
        delayed=total(replies[::width]),
        held_bytes=total(held),
        fullest_bytes=None if None in held else max(filter(None, held), default=0),
        dead=total(replies[2::width]),
        tenants=_tenants([reply for place, reply in enumerate(replies) if place % width > 2])
        if tenants
        else None,
    )


async def first_unread(redis: Any, lane_key: str) -> tuple[bytes, dict[bytes, bytes]] | None:
    """A lane's oldest undelivered entry, with its fields; None without one. Raises redis-py's errors."""
    try:
        groups = await redis.xinfo_groups(lane_key)
    except ResponseError as error:
        if "no such key" in str(error):
            return None
        raise
    last = next((row["last-delivered-id"] for row in groups if row["name"] == GROUP.encode()), b"0-0")
    unread = await redis.xrange(lane_key, b"(" + last, "+", count=1)
    return unread[0] if unread else None


def count_at(key: str, stored: bytes | None) -> int | None:
    """Returns the count that a key holds. Raises ProtocolError if it holds none."""
    try:
        return number(stored)
    except ValueError as error:
        raise ProtocolError(f"the key {key} is damaged: {stored!r:.100} is no count") from error


def total(counts: Sequence[int | None]) -> int | None:
    """Returns their sum; None if one of them could not be read."""
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _tenants(hashes: Sequence[dict[bytes, bytes] | None]) -> dict[str, int] | None:
    """Sums the jobs parked by tenant, from fields `=<tenant>` of "<finish> <jobs parked>"."""
    parked: Counter[str] = Counter()
    for stored in hashes:
        if stored is None:
            return None
        for field, value in stored.items():
            count = value.rpartition(b" ")[2]
            if field.startswith(b"=") and count.isdigit() and int(count):
                parked[field[1:].decode(errors="replace")] += int(count)
    return dict(parked.most_common())


def _held(reply: Any) -> int | None:
    """Counts entries that workers have; released ones wait for the next worker."""
    if isinstance(reply, ResponseError) and ("NOGROUP" in str(reply) or "no such key" in str(reply)):
        return 0
    rows = _seen(reply)
    return None if rows is None else sum(row["pending"] for row in rows if row["name"] != RELEASED.encode())


def _seen(reply: Any) -> Any:
    if isinstance(reply, NoPermissionError):
        return None
    if isinstance(reply, Exception):
        raise reply
    return reply
