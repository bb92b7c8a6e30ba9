"""What workers say of themselves, and who of them is alive."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from redis.exceptions import ResponseError

from millstream.errors import ProtocolError
from millstream.wire.keys import GROUP, RELEASED, ShardKeys
from millstream.wire.scripts import Call, positive, script, texts
from millstream.wire.versions import FIRST_VERSION, TAKEN, Versions


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """One worker's state. `version_min` to `version_max` are the message versions that it takes."""

    name: str  # its consumer name: host and a nonce that is new at each start
    model: str
    version_min: int = TAKEN.low
    version_max: int = TAKEN.high
    token_capacity: int = 0  # KV tokens
    max_rows: int = 0
    rows_running: int = 0
    rows_waiting: int = 0

    @property
    def versions(self) -> Versions:
        return Versions(self.version_min, self.version_max)

    @classmethod
    def parse(cls, fields: dict[str, str]) -> Heartbeat:
        """Fields that this version does not know are ignored, absent ones take their defaults."""
        stored = dict.fromkeys(("version_min", "version_max"), str(FIRST_VERSION)) | fields
        counts = (name for name in cls.__slots__ if name not in ("name", "model") and name in stored)
        try:
            beat = cls(stored["name"], stored["model"], **{name: int(stored[name]) for name in counts})
            Versions(beat.version_min, beat.version_max)
            return beat
        except (KeyError, ValueError) as error:
            raise ProtocolError(
                f"a worker's heartbeat is damaged: {fields!s:.200} ({error!r:.100})"
            ) from error


def beat(keys: ShardKeys, heartbeat: Heartbeat, *, ttl_ms: int) -> Call[None]:
    """Say that the worker is alive for the next `ttl_ms`. Passes at maxmemory."""
    pairs = (str(part) for pair in asdict(heartbeat).items() for part in pair)
    return Call(
        script("beat"),
        (keys.worker(heartbeat.name),),
        (positive("ttl_ms", ttl_ms), *pairs),
        lambda _: None,
    )


async def read_workers(redis: Any, *shards: ShardKeys) -> list[Heartbeat]:
    """The living workers of these shards, by name: consumers of a lane whose heartbeat has not run out. Two
    round trips, however many shards."""
    lanes = [(keys, lane) for keys in shards for lane in keys.lanes]
    async with redis.pipeline(transaction=False) as pipeline:
        for _, lane in lanes:
            pipeline.xinfo_consumers(lane, GROUP)
        replies = await pipeline.execute(raise_on_error=False)
    beats = {
        keys.worker(name): None
        for (keys, _), reply in zip(lanes, replies, strict=True)
        for name in _consumers(reply)
    }
    if not beats:
        return []
    async with redis.pipeline(transaction=False) as pipeline:
        for key in beats:
            pipeline.hgetall(key)
        rows = await pipeline.execute()
    found = {one.name: one for one in (Heartbeat.parse(texts(row)) for row in rows if row)}
    return [found[name] for name in sorted(found)]


def _consumers(reply: Any) -> list[str]:
    if isinstance(reply, ResponseError) and ("NOGROUP" in str(reply) or "no such key" in str(reply)):
        return []  # nobody has read this lane yet
    if isinstance(reply, Exception):
        raise reply
    names = [row["name"].decode(errors="replace") for row in reply]
    return [name for name in names if name != RELEASED]
