"""Every key, channel and id of the protocol. All keys of a shard carry one hash tag, so that a shard is
atomic under Lua and lives in one Cluster slot.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from enum import StrEnum
from itertools import count
from typing import Any
from uuid import uuid4

from millstream.errors import InvalidRequest

GROUP = "workers"
RELEASED = "released"  # the consumer of released entries, until someone reclaims them
LOOK = "look"  # on the control channel, with a job id: a reader asks whether the job's entry was destroyed
_ID = re.compile(r"[A-Za-z0-9._:-]{1,200}")
_JOB_ID = re.compile(r"[0-9]{1,9}-[A-Za-z0-9._:-]{1,200}")
_LIKE_JOB_ID = re.compile(r"[0-9]{1,9}-")
_QUEUE = re.compile(r"[^{}\s\x00-\x1f]{1,100}")


class Lane(StrEnum):
    INTERACTIVE = "interactive"
    BATCH = "batch"


LANES = (Lane.INTERACTIVE, Lane.BATCH)  # in the order in which workers serve them


class Key:
    """A key of this name, behind the `tag` of all keys that have it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, keys: Any, kind: type | None = None) -> str:
        return f"{keys.tag}:{self._name}"


@dataclass(frozen=True, slots=True)
class QueueKeys:
    """A queue's metadata, and its shards. `sharded`: the queue publishes by sharded pub/sub."""

    queue: str
    sharded: bool = False

    def __post_init__(self) -> None:
        if not _QUEUE.fullmatch(self.queue):
            raise InvalidRequest("queue", self.queue, "1 to 100 characters without braces or white space")

    @property
    def meta(self) -> str:
        """Hash: shards, pubsub: written once; version_min, version_max: only ever widened; model and
        model_digest: the one model of the queue.
        """
        return f"{{ms:{self.queue}}}:meta"

    def shard(self, shard: int) -> ShardKeys:
        return ShardKeys(f"{{ms:{self.queue}:{shard}}}", self.sharded)


@dataclass(frozen=True, slots=True)
class ShardKeys:
    tag: str
    sharded: bool = False

    control = Key("control")
    dead = Key("dead")
    deadlines = Key("deadlines")
    delayed = Key("delayed")
    held_bytes = Key("bytes")
    model = Key("model")  # hash: `digest` of the queue's model, where scripts of the shard can read it

    @property
    def publish(self) -> str:
        """The command that reaches subscribers: SPUBLISH to a plain SUBSCRIBE silently reaches nobody."""
        return "SPUBLISH" if self.sharded else "PUBLISH"

    def lane(self, lane: str) -> str:
        return f"{self.tag}:lane:{lane}"

    @property
    def lanes(self) -> list[str]:
        return [self.lane(lane) for lane in LANES]

    def job(self, job_id: str) -> str:
        return f"{self.tag}:job:{job_id}"

    def tokens(self, job_id: str) -> str:
        return f"{self.tag}:tokens:{job_id}"

    def events(self, job_id: str) -> str:
        return f"{self.tag}:events:{job_id}"

    def parked(self, lane: str) -> str:
        return f"{self.tag}:parked:{lane}"

    def tenants(self, lane: str) -> str:
        return f"{self.tag}:tenants:{lane}"

    @property
    def parking_keys(self) -> list[str]:
        """Keys of the jobs parked beside the lanes, as scripts take them."""
        return [key for lane in LANES for key in (self.parked(lane), self.tenants(lane))]

    def parked_lanes(self, first: Lane = LANES[0]) -> list[str]:
        """The lanes, each with its parked jobs; `first` before the others."""
        lanes = (first, *(lane for lane in LANES if lane is not first))
        return [key for lane in lanes for key in (self.lane(lane), self.parked(lane), self.tenants(lane))]

    def cached(self, digest: str) -> str:
        """The kept result of requests whose key has this digest."""
        return f"{self.tag}:cache:{digest}"

    @property
    def cache(self) -> tuple[str, str]:
        """Sorted set of the kept results by the time of their end, and their bytes."""
        return f"{self.tag}:cache", f"{self.tag}:cache_bytes"

    def end_keys(self, job_id: str) -> tuple[str, ...]:
        """All keys that the end of a job touches, in the order in which scripts take them."""
        return self.job(job_id), self.tokens(job_id), self.delayed, self.deadlines, self.held_bytes

    @property
    def kept_keys(self) -> set[str]:
        """Keys that may stay after all jobs have ended and were forgotten."""
        return {self.held_bytes, self.dead, self.model, *self.lanes}

    def worker(self, name: str) -> str:
        return f"{self.tag}:worker:{name}"

    def loading(self, name: str) -> str:
        """The heartbeat of a worker that has not served yet: who looks for those that serve finds none."""
        return f"{self.worker(name)}:loading"


def new_own_id(content: str = "", shards: int = 1) -> str:
    """A random one. With a digest of some content, one whose shard follows from that: jobs of equal content
    meet.
    """
    begun = uuid4().hex
    if not content:
        return begun
    wanted, so_far = zlib.crc32(content.encode()) % shards, zlib.crc32(begun.encode())
    ends = (f"{number:x}" for number in count())
    return begun + next(end for end in ends if zlib.crc32(end.encode(), so_far) % shards == wanted)


def check_own_id(own_id: str) -> str:
    if not _ID.fullmatch(own_id):
        raise InvalidRequest("id", own_id, "1 to 200 characters of A-Z a-z 0-9 . _ : -")
    if _LIKE_JOB_ID.match(own_id):
        problem = "begins as a full job id (<shard>-<own id>) does; put a letter before the number"
        raise InvalidRequest("id", own_id, problem)
    return own_id


def job_id_of(own_id: str, shards: int) -> str:
    """`<shard>-<own id>`: any client that knows the own id and the shard count finds the job."""
    return f"{zlib.crc32(own_id.encode()) % shards}-{own_id}"


def is_job_id(text: str) -> bool:
    return _JOB_ID.fullmatch(text) is not None


def full_id(text: str, shards: int) -> str | None:
    """The full id of a job given by its full or own id; None for a text that cannot be one."""
    if not isinstance(text, str):
        raise InvalidRequest(
            "job_id", text, "must be a string: the `.id` that submit returned, or your own id"
        )
    if is_job_id(text):
        return text
    return job_id_of(text, shards) if _ID.fullmatch(text) else None


def shard_of(job_id: str) -> int:
    if not is_job_id(job_id):
        raise InvalidRequest("job_id", job_id, "a job id looks like <shard>-<own id>, e.g. 0-invoice-17")
    return int(job_id.partition("-")[0])
