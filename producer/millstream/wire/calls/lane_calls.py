"""The calls by which a worker joins a shard's lanes and takes entries, bounded in number and bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from millstream.wire.calls.scripts import ScriptCall, positive, script
from millstream.wire.keys import LANES, Lane, ShardKeys


@dataclass(frozen=True, slots=True)
class Delivered:
    """An entry as it was read; `lane_entry` checks whether it is a job."""

    lane: Lane
    entry_id: bytes
    fields: list[bytes]  # name, value, name, value, …


def join(keys: ShardKeys, *, owner: str | None = None) -> ScriptCall[None]:
    """Create the consumer groups that are missing on the shard's lanes, and register `owner` as a consumer.
    Passes at maxmemory.
    """
    return ScriptCall(script("join"), tuple(keys.lanes), (owner or "",), lambda _: None)


def take(
    keys: ShardKeys, *, owner: str, max_entries: int, max_bytes: int
) -> ScriptCall[tuple[Delivered, ...]]:
    """Take the shard's next entries for `owner`: the first lane first, parked jobs in their turn. The entry
    that reaches `max_bytes` is the last one. XREADGROUP alone counts entries: 64 of them may be a gigabyte.

    Not repeated after a lost reply: its entries stay pending with `owner`, who finds them there.
    """
    return ScriptCall(
        script("take"),
        (keys.job(""), *keys.parked_lanes()),
        (owner, positive("max_entries", max_entries), positive("max_bytes", max_bytes)),
        _delivered,
    )


def _delivered(reply: Any) -> tuple[Delivered, ...]:
    return tuple(Delivered(LANES[number - 1], entry_id, fields) for number, entry_id, fields in reply)
