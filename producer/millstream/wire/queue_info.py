"""A queue's metadata.

How many shards a queue has, and by which kind of pub/sub its tokens are told, is settled by whoever uses it
first; all others must agree, or they would look for jobs where there are none and wait for messages that
nobody sends.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from millstream.errors import InvalidRequest, ProtocolError, QueueMismatch
from millstream.wire.keys import QueueKeys
from millstream.wire.messages import WIRE_VERSION
from millstream.wire.scripts import Call, run, script, texts


class PubSub(StrEnum):
    PLAIN = "plain"
    SHARDED = "sharded"  # Redis 7 and Valkey; needed in a Cluster


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """`version_min` to `version_max` is the window of message versions that the queue takes."""

    shards: int = 1
    pubsub: PubSub = PubSub.PLAIN
    version_min: int = WIRE_VERSION
    version_max: int = WIRE_VERSION

    def keys(self, queue: str) -> QueueKeys:
        return QueueKeys(queue, sharded=self.pubsub is PubSub.SHARDED)


async def open_queue(
    redis: Any,
    queue: str,
    *,
    shards: int | None = None,
    pubsub: PubSub | None = None,
    version: int = WIRE_VERSION,
) -> QueueInfo:
    """Read the queue's metadata; write it where this is the queue's first use. None takes what is there (new
    queues: one shard, plain pub/sub).

    Raises QueueMismatch where the queue was created with other settings, or does not take this version, and
    InvalidRequest for fewer shards than one.
    """
    if shards is not None and shards < 1:
        raise InvalidRequest("shards", shards, "a queue has at least one shard")
    wanted = QueueInfo(shards or 1, pubsub or PubSub.PLAIN)
    stored = await run(redis, describe(QueueKeys(queue), wanted))
    if shards is not None and stored.shards != shards:
        raise QueueMismatch(_unlike(queue, "shards", stored.shards, shards))
    if pubsub is not None and stored.pubsub is not pubsub:
        raise QueueMismatch(_unlike(queue, "pubsub", stored.pubsub, pubsub))
    if not stored.version_min <= version <= stored.version_max:
        window = f"{stored.version_min} to {stored.version_max}"
        raise QueueMismatch(
            f"queue {queue!r} takes message versions {window}, not {version}; upgrade the older side"
        )
    return stored


def _unlike(queue: str, field: str, stored: object, wanted: object) -> str:
    return (
        f"queue {queue!r} was created with {field} {stored}, not {wanted}; "
        f"set {field} to {stored}, or use another queue"
    )


def describe(keys: QueueKeys, info: QueueInfo) -> Call[QueueInfo]:
    """Write `info` where the queue has no metadata yet; answers what is stored."""
    args = tuple(str(part) for pair in asdict(info).items() for part in pair)
    return Call(script("describe"), (keys.meta,), args, _info)


async def read_queue(redis: Any, queue: str) -> QueueInfo | None:
    """The queue's metadata; None where it was never used."""
    fields = await redis.hgetall(QueueKeys(queue).meta)
    return _info(fields) if fields else None


def _info(reply: Any) -> QueueInfo:
    fields = texts(reply)
    try:
        return QueueInfo(
            int(fields["shards"]),
            PubSub(fields["pubsub"]),
            int(fields["version_min"]),
            int(fields["version_max"]),
        )
    except (KeyError, ValueError) as error:
        raise ProtocolError(f"the queue's metadata is damaged: {fields} ({error!r})") from error
