"""Heartbeats: each worker's state, and which workers are alive. They hold no prompt and no tenant's name."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from math import isfinite
from typing import Any

from redis.exceptions import ResponseError

from millstream.errors import ProtocolError
from millstream.wire.calls.scripts import ScriptCall, positive, script, texts
from millstream.wire.keys import GROUP, LANES, RELEASED, Lane, ShardKeys
from millstream.wire.state.model_facts import ModelFacts
from millstream.wire.versions import ADDED, FIRST_VERSION, TAKEN, Versions

# loading: its first engine is not ready yet, and it takes no job; starting: another engine takes the place of
# one that died, and it keeps its jobs
LOADING, SERVING, STARTING, DRAINING = "loading", "serving", "starting", "draining"
# Steps of either beside those that the engine reports.
STARTING_ENGINE, READING_TOKENIZER = "starting the engine", "reading the tokenizer"
_TRUE = ("1", "True")  # as a script has it, and as Python writes it


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFacts(ModelFacts):
    """The figures of a heartbeat that are shown as they are."""

    state: str = SERVING
    step: str = ""  # of its start, while no engine is ready
    package: str = ""  # its version of millstream
    rows_running: int = 0
    rows_waiting: int = 0
    grammars_waiting: int = 0  # requests whose response_format is being compiled, or waits for that
    kv_used: int = 0  # KV tokens, as are the next two: by rows
    kv_cached: int = 0  # of no row, but holding a prefix that can be found again
    kv_free: int = 0
    images: bool = False  # it reads images of requests; older workers do not say


@dataclass(frozen=True, slots=True)
class Heartbeat(WorkerFacts):
    """One worker's state, and its model's facts. `version_min` to `version_max` are the message versions that
    it takes. Fields that are 0 or empty are not sent.
    """

    name: str  # its consumer name: host and a nonce that is new at each start
    version_min: int = TAKEN.low
    version_max: int = TAKEN.high
    token_capacity: int = 0  # KV tokens
    prompt_per_s: float = 0.0  # tokens computed since the previous heartbeat
    output_per_s: float = 0.0
    prefix_queried: int = 0  # prompt tokens looked up in the prefix cache since the engine started
    prefix_hit: int = 0  # and found
    started_ms: int = 0
    keeps_results: int = 0  # 1: for equal requests
    oldest_interactive_ms: int = 0  # submission time of the lane's oldest waiting job; 0: none waits
    oldest_batch_ms: int = 0
    sent_ms: int = 0  # by the server's clock; the script sets these two
    ttl_ms: int = 0

    def oldest_ms(self, lane: str) -> int:
        """Returns when this lane's oldest waiting job, in the heartbeat's shard, was submitted; 0: none."""
        return self.oldest_interactive_ms if lane == Lane.INTERACTIVE else self.oldest_batch_ms

    @property
    def versions(self) -> Versions:
        return Versions(self.version_min, self.version_max)

    def age_ms(self, at_ms: int) -> int | None:
        """Returns how long ago it was sent; None: its worker, an older one, does not say it."""
        return max(0, at_ms - self.sent_ms) if self.sent_ms else None

    def is_late(self, at_ms: int) -> bool:
        """True if the next one should have come: a worker sends three while one holds."""
        return self.sent_ms > 0 and at_ms - self.sent_ms > self.ttl_ms / 2

    @classmethod
    def parse(cls, fields: dict[str, str]) -> Heartbeat:
        """Fields that this version does not know are ignored, absent ones and invalid figures take their
        defaults. Raises ProtocolError if it names no worker, or no versions.
        """
        stored = dict.fromkeys(("version_min", "version_max"), str(FIRST_VERSION)) | fields
        try:
            Versions(int(stored["version_min"]), int(stored["version_max"]))  # raises ValueError
            return cls(stored["name"], **_figures(stored) | {"model": stored["model"]})
        except (KeyError, ValueError) as error:
            raise ProtocolError(
                f"a worker's heartbeat is damaged: {fields!s:.200} ({error!r:.100})"
            ) from error


def _figures(stored: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in (one for one in fields(Heartbeat) if one.name != "name"):
        default: Any = field.default
        with contextlib.suppress(KeyError, ValueError):
            text = stored[field.name]
            value = text in _TRUE if isinstance(default, bool) else type(default)(text)
            if isinstance(value, str) or isfinite(value):
                found[field.name] = value
    return found


def beat(keys: ShardKeys, heartbeat: Heartbeat, *, ttl_ms: int) -> ScriptCall[None]:
    """Report that the worker is alive for the next `ttl_ms`. Passes at maxmemory."""
    places = keys.worker(heartbeat.name), keys.loading(heartbeat.name)
    told = {name: value for name, value in asdict(heartbeat).items() if value or name in ("name", "model")}
    pairs = (str(int(part) if part is True else part) for pair in told.items() for part in pair)
    return ScriptCall(
        script("beat"),
        places[::-1] if heartbeat.state == LOADING else places,
        (positive("ttl_ms", ttl_ms), *pairs),
        lambda _: None,
    )


async def read_workers(redis: Any, *shards: ShardKeys) -> list[Heartbeat]:
    """The living workers of these shards, by name: consumers of a lane whose heartbeat has not expired;
    without those that have not served yet. Two round trips for any number of shards. Unreadable
    heartbeats, written by foreign programs, are left out.
    """
    [workers] = await _read(redis, shards, ShardKeys.worker)
    return workers


async def read_all_workers(redis: Any, *shards: ShardKeys) -> tuple[list[Heartbeat], list[Heartbeat]]:
    """The same, and the living workers that load their model for the first time, in the same two round trips.
    A worker that begins to serve between two of the reads is a worker: it is looked for among those that load
    first.
    """
    loading, workers = await _read(redis, shards, ShardKeys.loading, ShardKeys.worker)
    names = {one.name for one in workers}
    return workers, [one for one in loading if one.name not in names]


async def _read(
    redis: Any, shards: Sequence[ShardKeys], *keys_of: Callable[[ShardKeys, str], str]
) -> list[list[Heartbeat]]:
    """Returns the heartbeats in each kind of keys, which are read in their order."""
    lanes = [(keys, lane) for keys in shards for lane in keys.lanes]
    async with redis.pipeline(transaction=False) as pipeline:
        for _, lane in lanes:
            pipeline.xinfo_consumers(lane, GROUP)
        replies = await pipeline.execute(raise_on_error=False)
    consumers = {
        (keys, name): None
        for (keys, _), reply in zip(lanes, replies, strict=True)
        for name in _consumers(reply)
    }
    if not consumers:
        return [[] for _ in keys_of]
    async with redis.pipeline(transaction=False) as pipeline:
        for key_of in keys_of:
            for keys, name in consumers:
                pipeline.hgetall(key_of(keys, name))
        rows = await pipeline.execute()
    return [_parsed(rows[first : first + len(consumers)]) for first in range(0, len(rows), len(consumers))]


def _parsed(rows: Iterable[Any]) -> list[Heartbeat]:
    found: dict[str, Heartbeat] = {}
    for row in rows:
        with contextlib.suppress(ProtocolError):
            if row:
                one = Heartbeat.parse(texts(row))
                found[one.name] = _over_shards(found[one.name], one) if one.name in found else one
    return [found[name] for name in sorted(found)]


def models_of(workers: Iterable[Heartbeat]) -> dict[str, str]:
    """The models of these workers: their names by digest, those of older workers by name."""
    workers = [one for one in workers if one.model]  # an older worker has none while its engine loads
    models = {one.model_digest: one.model for one in workers if one.model_digest}
    older = {one.model: one.model for one in workers if not one.model_digest}
    return models | {name: name for name in older if name not in models.values()}


def text_only_model(workers: Iterable[Heartbeat]) -> str:
    """The model of these workers if all that take requests with images say that they read none of them;
    else empty.
    """
    takers = [one for one in workers if ADDED["images"] in one.versions]
    return (
        "" if any(one.images or not one.model for one in takers) else next((one.model for one in takers), "")
    )


def _over_shards(one: Heartbeat, other: Heartbeat) -> Heartbeat:
    """Combine one worker's heartbeats of two shards."""
    interactive, batch = (
        min(filter(None, (one.oldest_ms(lane), other.oldest_ms(lane))), default=0) for lane in LANES
    )
    latest = max(one, other, key=lambda beat: beat.sent_ms)
    return replace(latest, oldest_interactive_ms=interactive, oldest_batch_ms=batch)


def _consumers(reply: Any) -> list[str]:
    if isinstance(reply, ResponseError) and ("NOGROUP" in str(reply) or "no such key" in str(reply)):
        return []  # nobody has read this lane yet
    if isinstance(reply, Exception):
        raise reply
    names = [row["name"].decode(errors="replace") for row in reply]
    return [name for name in names if name != RELEASED]
