"""What workers say of themselves, and who of them is alive."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from redis.exceptions import ResponseError

from millstream.errors import ProtocolError
from millstream.wire.keys import GROUP, RELEASED, ShardKeys
from millstream.wire.messages import WIRE_VERSION
from millstream.wire.scripts import Call, positive, script, texts


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """One worker's state. `version_min` to `version_max` are the message versions that it takes."""

    name: str  # its consumer name: host and a nonce that is new at each start
    model: str
    version_min: int = WIRE_VERSION
    version_max: int = WIRE_VERSION
    token_capacity: int = 0  # KV tokens
    max_rows: int = 0
    rows_running: int = 0
    rows_waiting: int = 0

    @classmethod
    def parse(cls, fields: dict[str, str]) -> Heartbeat:
        """Fields that this version does not know are ignored, absent ones take their defaults."""
        counts = (name for name in cls.__slots__ if name not in ("name", "model") and name in fields)
        try:
            return cls(fields["name"], fields["model"], **{name: int(fields[name]) for name in counts})
        except (KeyError, ValueError) as error:
            raise ProtocolError(f"a worker's heartbeat is damaged: {fields} ({error!r})") from error


def beat(keys: ShardKeys, heartbeat: Heartbeat, *, ttl_ms: int) -> Call[None]:
    """Say that the worker is alive for the next `ttl_ms`. Passes at maxmemory."""
    pairs = (str(part) for pair in asdict(heartbeat).items() for part in pair)
    return Call(
        script("beat"),
        (keys.worker(heartbeat.name),),
        (positive("ttl_ms", ttl_ms), *pairs),
        lambda _: None,
    )


async def read_workers(redis: Any, keys: ShardKeys) -> list[Heartbeat]:
    """The living workers of a shard, by name: consumers of its lanes whose heartbeat has not run out."""
    names = {name for lane in keys.lanes for name in await _consumers(redis, lane)}
    if not names:
        return []
    async with redis.pipeline(transaction=False) as pipeline:
        for name in sorted(names):
            pipeline.hgetall(keys.worker(name))
        rows = await pipeline.execute()
    return [Heartbeat.parse(texts(row)) for row in rows if row]


async def _consumers(redis: Any, lane: str) -> list[str]:
    try:
        rows = await redis.xinfo_consumers(lane, GROUP)
    except ResponseError as error:
        if "NOGROUP" in str(error) or "no such key" in str(error):  # nobody has read this lane yet
            return []
        raise
    names = [row["name"].decode() for row in rows]
    return [name for name in names if name != RELEASED]
