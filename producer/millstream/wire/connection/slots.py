"""Computes the slot of a Cluster for a command, from its keys, as the server does."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence

from redis.crc import key_slot

Part = str | bytes | int | float
# Commands that any node can execute. All others have a key, most of them in the second place.
KEYLESS = frozenset(
    (
        "ASKING",
        "CLIENT",
        "CLUSTER",
        "CONFIG",
        "ECHO",
        "INFO",
        "PING",
        "PUBLISH",
        "ROLE",
        "TIME",
        "WAIT",
        "WAITAOF",
    )
)
# Commands that cover one node only, although their replies look complete.
OF_ONE_NODE = frozenset(("DBSIZE", "FLUSHALL", "FLUSHDB", "KEYS", "MULTI", "RANDOMKEY", "SCAN", "SCRIPT"))
SCRIPTS = frozenset(("EVAL", "EVAL_RO", "EVALSHA", "EVALSHA_RO", "FCALL", "FCALL_RO"))
STREAM_READS = frozenset(("XREAD", "XREADGROUP"))


def slot_of(command: Sequence[Part]) -> int | None:
    """None: the command has no key. `command` as redis-py takes it: the name may be of two words.

    Raises ValueError for commands that only make sense on one node.
    """
    name, *rest = command
    words = (name.decode() if isinstance(name, bytes) else str(name)).upper().split()
    if words[0] in KEYLESS:
        return None
    if words[0] in OF_ONE_NODE:
        raise ValueError(f"{name!r} is for one node of a Cluster; connect to that node by a redis:// URL")
    if words[0] in SCRIPTS:
        return channel_slot(rest[2]) if int(rest[1]) else None
    if words[0] in STREAM_READS:
        return channel_slot(rest[_streams(rest) + 1])
    if len(words) == 1 and words[0] in ("XINFO", "XGROUP", "OBJECT", "MEMORY"):
        return channel_slot(rest[1])
    return channel_slot(rest[0])


def channel_slot(name: Part) -> int:
    """The slot of a key, or of a channel of sharded pub/sub."""
    return key_slot(name if isinstance(name, bytes) else str(name).encode())


def places_by(names: Iterable[Hashable]) -> list[list[int]]:
    """The places of each name, such as the slots of many commands."""
    places: defaultdict[Hashable, list[int]] = defaultdict(list)
    for place, name in enumerate(names):
        places[name].append(place)
    return list(places.values())


def _streams(rest: Sequence[Part]) -> int:
    return next(i for i, part in enumerate(rest) if part in ("STREAMS", b"STREAMS", "streams"))
