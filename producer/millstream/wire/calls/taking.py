"""The calls by which a worker joins a shard's lanes and takes queued entries, bounded in number and bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from millstream.wire.calls.scripts import ScriptCall, positive, script
from millstream.wire.keys import LANES, Lane, ShardKeys


@dataclass(frozen=True, slots=True)
class Delivered:
    """An entry as it was read; `lane_entry` tells whether it is a job."""

    lane: Lane
    entry_id: bytes
    fields: list[bytes]  # name, value, name, value, …


def join(keys: ShardKeys, *, owner: str | None = None) -> ScriptCall[None]:
    """Give the shard's lanes their group where they have none, and make `owner` one of its consumers. Passes
    at maxmemory."""
    return ScriptCall(script("join"), tuple(keys.lanes), (owner or "",), lambda _: None)


def take(
    keys: ShardKeys, *, owner: str, max_entries: int, max_bytes: int
) -> ScriptCall[tuple[Delivered, ...]]:
    """Take the shard's next entries for `owner`: the first lane first, parked jobs in their turn. The
    entry with which they reach `max_bytes` is the last one. XREADGROUP alone counts entries: 64 of them may
    be a gigabyte.

    Not repeated where the reply was lost: its entries stay pending with `owner`, who looks for them there.
    """
    return ScriptCall(
        script("take"),
        (keys.job(""), *keys.parked_lanes()),
        (owner, positive("max_entries", max_entries), positive("max_bytes", max_bytes)),
        _delivered,
    )


def _delivered(reply: Any) -> tuple[Delivered, ...]:
    return tuple(Delivered(LANES[number - 1], entry_id, fields) for number, entry_id, fields in reply)
