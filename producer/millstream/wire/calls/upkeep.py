"""Calls that any worker makes for all: due retries and deadlines, entries of dead workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from millstream.errors import ProtocolError
from millstream.wire.calls.scripts import ScriptCall, positive, script
from millstream.wire.keys import GROUP, LANES, ShardKeys, is_job_id
from millstream.wire.messages.script_replies import EndOutcome, LaneEntry, PendingEntry


def promote(keys: ShardKeys, *, limit: int) -> ScriptCall[tuple[str, ...]]:
    """Move due retries back to their lanes, and a parked job into one that has none; returns their job ids.
    `limit` bounds the retries of one call. Passes at maxmemory.
    """
    return ScriptCall(
        script("promote"),
        (keys.delayed, keys.job(""), *keys.parked_lanes()),
        (positive("limit", limit), *LANES),
        _job_ids,
    )


def expire(keys: ShardKeys, *, limit: int, ttl_ms: int) -> ScriptCall[tuple[str, ...]]:
    """End jobs whose deadline has passed; returns their job ids. The log keeps their text.

    `limit` bounds one call; call again while it returns that many.
    """
    return ScriptCall(
        script("expire"),
        (
            keys.delayed,
            keys.deadlines,
            keys.held_bytes,
            keys.job(""),
            keys.tokens(""),
            *keys.lanes,
            *keys.parking_keys,
        ),
        (
            positive("limit", limit),
            positive("ttl_ms", ttl_ms),
            keys.publish,
            keys.events(""),
            keys.control,
            *LANES,
        ),
        _job_ids,
    )


def _job_ids(reply: Any) -> tuple[str, ...]:
    return tuple(job_id.decode() for job_id in reply)


def reclaim(
    keys: ShardKeys,
    *,
    lane: str,
    owner: str,
    overdue: Sequence[tuple[str, str]],
    min_idle_ms: int,
    died: bool,
) -> ScriptCall[tuple[LaneEntry, ...]]:
    """Take over entries (entry id, owner seen in both scans) that are still that owner's and still idle.

    `died` charges the attempt, unless the job was released or never started; it is charged as alone if
    `isolate` has recorded that. Entries of the owner `released` are taken whatever their idle time; those
    whose job has ended are dropped.
    """
    return ScriptCall(
        script("reclaim"),
        (keys.lane(lane), keys.job("")),
        (
            owner,
            min_idle_ms,
            "1" if died else "",
            # a foreign owner may have any name: it is returned byte for byte as it was seen
            *(part.encode(errors="surrogateescape") for pair in overdue for part in pair),
        ),
        lambda reply: tuple(lane_entry(lane, entry_id, fields) for entry_id, _, fields in reply),
    )


def look(
    keys: ShardKeys,
    *,
    job_id: str,
    attempt: int,
    seq: int,
    ttl_ms: int,
    result: bytes = b"",
    finished_ms: int | None = None,
) -> ScriptCall[bool]:
    """End a job whose entry was destroyed; True if this call did. Without a `result` nothing is written: True
    if it would be. The result describes the job at `attempt` and `seq`: a job that has moved on is kept.
    Passes at maxmemory.
    """
    return ScriptCall(
        script("look"),
        (*keys.end_keys(job_id), *keys.parked_lanes()),
        (
            job_id,
            attempt,
            seq,
            result,
            positive("ttl_ms", ttl_ms),
            keys.publish,
            keys.events(job_id),
            "" if finished_ms is None else finished_ms,
            *LANES,
        ),
        lambda reply: bool(reply == b"lost"),
    )


def drop_consumer(keys: ShardKeys, *, lane: str, consumer: str) -> ScriptCall[bool]:
    """Remove a consumer unless it holds entries; False if it does."""
    return ScriptCall(script("drop_consumer"), (keys.lane(lane),), (consumer,), bool)


def discard(
    keys: ShardKeys, *, lane: str, owner: str, entry_id: str, reason: str, max_dead: int
) -> ScriptCall[EndOutcome]:
    """Drop a delivered entry that `lane_entry` refused; a record of it stays in `dead`."""
    return ScriptCall(
        script("discard"),
        (keys.lane(lane), keys.dead),
        (owner, entry_id, reason, positive("max_dead", max_dead)),
        lambda reply: EndOutcome(reply.decode()),
    )


def lane_entry(lane: str, entry_id: bytes, fields: Mapping[bytes, bytes] | Sequence[bytes]) -> LaneEntry:
    """An entry as XREADGROUP (a mapping) or a script (a flat list) returns it. Raises ProtocolError if it is
    not a job.
    """
    if not isinstance(fields, Mapping):
        fields = dict(zip(fields[::2], fields[1::2], strict=True))
    not_a_job = f"entry {entry_id.decode()} of lane {lane} is not a job"  # its content is not shown
    try:
        job_id, version, payload = fields[b"id"].decode(), int(fields[b"v"]), fields[b"b"]
    except KeyError as missing:
        raise ProtocolError(f"{not_a_job}: it has no field {missing.args[0].decode()!r}") from None
    except ValueError:
        raise ProtocolError(f"{not_a_job}: its id is no text or its version no number") from None
    if not is_job_id(job_id):
        raise ProtocolError(f"{not_a_job}: its id has the wrong form")
    return LaneEntry(lane, entry_id.decode(), job_id, version, payload)


async def scan_pending(
    redis: Any, keys: ShardKeys, *, lane: str, start: str, count: int
) -> list[PendingEntry]:
    """One page of a lane's delivered entries, by id: `start` is "-", then "(" + the last entry id. Raises
    ResponseError NOGROUP without the group.
    """
    rows = await redis.xpending_range(keys.lane(lane), GROUP, start, "+", count)
    return [
        PendingEntry(
            row["message_id"].decode(),
            row["consumer"].decode(errors="surrogateescape"),
            row["time_since_delivered"],
        )
        for row in rows
    ]
