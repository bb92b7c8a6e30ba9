"""A queue's metadata.

The first user of a queue sets its number of shards and its kind of pub/sub; all others must use the same, or
they would look for jobs in empty shards and wait for messages that nobody publishes. The window of message
versions only grows, by workers that take more. The model is recorded by the first worker that has loaded one;
another one only replaces it where that is asked for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from redis.exceptions import ResponseError

from millstream.errors import InvalidRequest, ProtocolError, QueueMismatch
from millstream.wire.calls.scripts import ScriptCall, run, script, texts
from millstream.wire.connection import is_cluster
from millstream.wire.keys import QueueKeys, ShardKeys
from millstream.wire.versions import TAKEN, Versions

MOST_SHARDS = 1024  # each has a loop in every worker
SHOWN_DIGEST = 12  # characters


class PubSub(StrEnum):
    PLAIN = "plain"
    SHARDED = "sharded"  # Redis 7 and Valkey; needed in a Cluster


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """A checkpoint by its name and digest; empty: it is not known."""

    name: str = ""
    digest: str = ""

    def is_other(self, known: ModelIdentity | None) -> bool:
        """True if both digests are known, and differ."""
        return known is not None and bool(self.digest and known.digest) and self.digest != known.digest

    def __str__(self) -> str:
        """Shows the model in messages."""
        return f"{self.name:.200} ({self.digest[:SHOWN_DIGEST]})"


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """`version_min` to `version_max` are the message versions that its workers take or took; `model` is the
    name of the checkpoint that they serve, `model_digest` its digest: empty before, and where workers do not
    report it.
    """

    shards: int = 1
    pubsub: PubSub = PubSub.PLAIN
    version_min: int = TAKEN.low
    version_max: int = TAKEN.high
    model: str = ""
    model_digest: str = ""

    @property
    def versions(self) -> Versions:
        return Versions(self.version_min, self.version_max)

    @property
    def served(self) -> ModelIdentity:
        return ModelIdentity(self.model, self.model_digest)

    def keys(self, queue: str) -> QueueKeys:
        return QueueKeys(queue, sharded=self.pubsub is PubSub.SHARDED)

    def shard_keys(self, queue: str) -> list[ShardKeys]:
        """The keys of all its shards."""
        keys = self.keys(queue)
        return [keys.shard(shard) for shard in range(self.shards)]


async def open_queue(
    redis: Any,
    queue: str,
    *,
    shards: int | None = None,
    pubsub: PubSub | None = None,
    takes: Versions | None = None,
    known: QueueInfo | None = None,
) -> QueueInfo:
    """Read the queue's metadata; write it on the queue's first use. None uses the existing value (new queues:
    one shard; plain pub/sub, in a Cluster sharded). `takes`: the versions of a worker, which widen the
    window. `known`: the metadata read before; it is written again if
    the server has lost it.

    Raises QueueMismatch if the queue was created with other settings, and InvalidRequest for an invalid
    number of shards, and for plain pub/sub in a Cluster, where every node would carry every message.
    """
    if shards is not None and not 1 <= shards <= MOST_SHARDS:
        raise InvalidRequest("shards", shards, f"a queue has 1 to {MOST_SHARDS} shards")
    if pubsub is PubSub.PLAIN and is_cluster(redis):
        raise InvalidRequest("pubsub", str(pubsub), "a queue of a Cluster publishes sharded: leave it unset")
    default = PubSub.SHARDED if is_cluster(redis) else PubSub.PLAIN
    wanted = known or QueueInfo(shards or 1, pubsub or default)
    with _readable(queue):
        stored = await run(redis, create_or_read(QueueKeys(queue), wanted))
    if shards is not None and stored.shards != shards:
        raise QueueMismatch(_unlike(queue, "shards", stored.shards, shards))
    if pubsub is not None and stored.pubsub is not pubsub:
        raise QueueMismatch(_unlike(queue, "pubsub", stored.pubsub, pubsub))
    if takes is None or stored.versions.covers(takes):
        return stored
    return await run(redis, record_worker(QueueKeys(queue), takes))


def _unlike(queue: str, field: str, stored: object, wanted: object) -> str:
    return (
        f"queue {queue!r} was created with {field} {stored}, not {wanted}; "
        f"set {field} to {stored}, or use another queue"
    )


def create_or_read(keys: QueueKeys, info: QueueInfo) -> ScriptCall[QueueInfo]:
    """Write `info` unless the queue has metadata; returns the stored metadata."""
    args = tuple(str(part) for pair in asdict(info).items() for part in pair)
    return ScriptCall(script("open_queue"), (keys.meta,), args, _info)


def record_worker(
    keys: QueueKeys, takes: Versions, *, model: str = "", model_digest: str = "", replace: bool = False
) -> ScriptCall[QueueInfo]:
    """Add a worker's versions to the queue's window, and record its model; returns the stored metadata. Where
    that has another digest, nothing is written unless `replace`. Passes at maxmemory.
    """
    args = (takes.low, takes.high, model, model_digest, "1" if replace else "")
    return ScriptCall(script("record_worker"), (keys.meta,), args, _info)


def serve_model(keys: ShardKeys, model_digest: str) -> ScriptCall[None]:
    """Record the queue's model in a shard: workers of other models start nothing there any more. Passes at
    maxmemory.
    """
    return ScriptCall(script("serve_model"), (keys.model,), (model_digest,), lambda _: None)


async def read_queue(redis: Any, queue: str) -> QueueInfo | None:
    """The queue's metadata; None if it was never used."""
    with _readable(queue):
        fields = await redis.hgetall(QueueKeys(queue).meta)
    return _info(fields) if fields else None


@contextlib.contextmanager
def _readable(queue: str) -> Iterator[None]:
    try:
        yield
    except ResponseError as error:
        if not str(error).startswith("WRONGTYPE"):
            raise
        raise ProtocolError(
            f"the metadata of queue {queue!r} is damaged: the key {QueueKeys(queue).meta} is no hash; "
            "delete or rename it, or use another queue"
        ) from error


def _info(reply: Any) -> QueueInfo:
    fields = texts(reply)
    try:
        info = QueueInfo(
            int(fields["shards"]),
            PubSub(fields["pubsub"]),
            int(fields["version_min"]),
            int(fields["version_max"]),
            fields.get("model", ""),
            fields.get("model_digest", ""),
        )
        if not 1 <= info.shards <= MOST_SHARDS:
            raise ValueError(f"{info.shards} shards")
        Versions(info.version_min, info.version_max)
        return info
    except (KeyError, ValueError) as error:
        raise ProtocolError(f"the queue's metadata is damaged: {fields!s:.200} ({error!r:.100})") from error
