"""The scripts of the protocol as typed calls, free of I/O: `run` sends one, `run_many` many in one round trip.

    reply = await run(redis, calls.submit(keys, ...))

Times are read from the server's own clock inside the scripts; all durations are milliseconds.
Every call is safe to repeat when its reply was lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from millstream.wire.keys import ShardKeys
from millstream.wire.messages import State
from millstream.wire.replies import (
    AppendReply,
    CancelOutcome,
    EndOutcome,
    LaneEntry,
    PendingEntry,
    RenewReply,
    StartReply,
    SubmitReply,
)

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Call(Generic[R]):
    script: Any
    keys: tuple[str, ...]
    args: tuple[str | bytes | int, ...]
    parse: Callable[[Any], R]


async def run(redis: Any, call: Call[R]) -> R:
    """Send one call (EVALSHA, loading the script where the server does not know it)."""
    raise NotImplementedError


async def run_many(redis: Any, calls: Sequence[Call[R]]) -> list[R | Exception]:
    """Send many calls in one round trip, not as a transaction; each answers or fails for itself."""
    raise NotImplementedError


def submit(keys: ShardKeys, *, job_id: str, lane: str, payload: bytes, digest: str, version: int,
           deadline_ms: int | None, stream: bool, max_entries: int, max_bytes: int) -> Call[SubmitReply]:
    raise NotImplementedError


def start(keys: ShardKeys, *, job_id: str, lane: str, entry_id: str, owner: str, nonce: str) -> Call[StartReply]:
    raise NotImplementedError


def append(keys: ShardKeys, *, job_id: str, attempt: int, owner: str, entry_id: str, seq: int, body: bytes,
           publish: bool) -> Call[AppendReply]:
    raise NotImplementedError


def renew(keys: ShardKeys, *, lane: str, owner: str, held: Sequence[tuple[str, str]]) -> Call[RenewReply]:
    """`held`: (job id, entry id) pairs of one lane."""
    raise NotImplementedError


def finish(keys: ShardKeys, *, job_id: str, lane: str, attempt: int, owner: str, entry_id: str, state: State,
           result: bytes, seq: int, delta: bytes | None, ttl_ms: int) -> Call[EndOutcome]:
    """`seq` is that of `delta`, or of the end marker where there is no delta; the end marker comes after it."""
    raise NotImplementedError


def retry(keys: ShardKeys, *, job_id: str, lane: str, attempt: int, owner: str, entry_id: str, delay_ms: int,
          died: bool) -> Call[EndOutcome]:
    """Park the job; it goes back to its lane after `delay_ms`. `died` charges an attempt that took its engine along."""
    raise NotImplementedError


def release(keys: ShardKeys, *, job_id: str, lane: str, attempt: int | None, owner: str, entry_id: str) -> Call[EndOutcome]:
    """Give a job back untouched and uncharged. `attempt` None: it was delivered but never started."""
    raise NotImplementedError


def promote(keys: ShardKeys, *, limit: int) -> Call[tuple[str, ...]]:
    """Move due retries back to their lanes; answers their job ids."""
    raise NotImplementedError


def expire(keys: ShardKeys, *, limit: int, ttl_ms: int) -> Call[tuple[str, ...]]:
    """End jobs whose deadline has passed; answers their job ids. Text in the log is kept as the partial result."""
    raise NotImplementedError


def expire_one(keys: ShardKeys, *, job_id: str, ttl_ms: int) -> Call[bool]:
    """The same for one job, where a reader looks at it before any worker swept."""
    raise NotImplementedError


def reclaim(keys: ShardKeys, *, lane: str, owner: str, overdue: Sequence[tuple[str, str]], min_idle_ms: int,
            died: bool) -> Call[tuple[LaneEntry, ...]]:
    """Take over entries (entry id, owner seen in both scans) that still belong to that owner and are still idle.

    `died` charges the attempt, unless the job was released or never started.
    """
    raise NotImplementedError


def cancel(keys: ShardKeys, *, job_id: str, ttl_ms: int) -> Call[CancelOutcome]:
    raise NotImplementedError


def bury(keys: ShardKeys, *, job_id: str, lane: str, attempt: int, owner: str, entry_id: str, reason: str,
         result: bytes, ttl_ms: int, max_dead: int) -> Call[EndOutcome]:
    """Dead-letter: the job ends as failed and its request is kept in the bounded `dead` stream."""
    raise NotImplementedError


def drop_consumer(keys: ShardKeys, *, lane: str, consumer: str) -> Call[bool]:
    """Remove a consumer, only when it holds nothing."""
    raise NotImplementedError


def pending(keys: ShardKeys, *, lane: str, start: str, count: int) -> tuple[Any, ...]:
    """Arguments of XPENDING … IDLE 0 for a scan with a cursor; see `parse_pending`."""
    raise NotImplementedError


def parse_pending(raw: Any) -> list[PendingEntry]:
    raise NotImplementedError
