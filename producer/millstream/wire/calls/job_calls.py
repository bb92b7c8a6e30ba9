"""The producers' calls: submit a job, cancel it, end it after its deadline, forget it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from millstream.wire.calls.scripts import ScriptCall, positive, script
from millstream.wire.keys import Lane, ShardKeys
from millstream.wire.messages.job_messages import State
from millstream.wire.messages.script_replies import CancelOutcome, SubmitOutcome, SubmitReply


def submit(
    keys: ShardKeys,
    *,
    job_id: str,
    lane: str,
    payload: bytes,
    digest: str,
    version: int,
    deadline_ms: int | None,
    stream: bool,
    max_entries: int,
    max_bytes: int,
    requeued_from: str | None = None,
    tenant: str = "",
    cost: int = 1,
) -> ScriptCall[SubmitReply]:
    """Queue a job once. `deadline_ms` is Unix time; the bounds are the shard's, this job included. When the
    lane has its window, `tenant` and `cost` (estimated tokens) decide the job's place among the waiting ones.

    At maxmemory a new job is refused as full, too.
    """
    first = Lane(lane)
    return ScriptCall(
        script("submit"),
        (
            keys.job(job_id),
            keys.tokens(job_id),
            keys.delayed,
            keys.deadlines,
            keys.held_bytes,
            *keys.parked_lanes(first),
        ),
        (
            job_id,
            first,
            version,
            payload,
            digest,
            "" if deadline_ms is None else deadline_ms,
            "1" if stream else "",
            requeued_from or "",
            max_entries,
            max_bytes,
            tenant,
            positive("cost", cost),
        ),
        _submitted,
    )


def _submitted(reply: Any) -> SubmitReply:
    outcome, state, entries, held_bytes, used_up = reply
    return SubmitReply(
        SubmitOutcome(outcome.decode()),
        State(state.decode()) if state else None,
        entries,
        held_bytes,
        used_up.decode(),
    )


def cancel(keys: ShardKeys, *, job_id: str, ttl_ms: int) -> ScriptCall[CancelOutcome]:
    """Cancel a job: a waiting one ends at once and is kept for `ttl_ms`; the worker of a running one is
    notified.
    """
    return ScriptCall(
        script("cancel"),
        (*keys.end_keys(job_id), *keys.parking_keys),
        (job_id, positive("ttl_ms", ttl_ms), keys.publish, keys.events(job_id), keys.control),
        lambda reply: CancelOutcome(reply.decode()),
    )


def expire_one(keys: ShardKeys, *, job_id: str, ttl_ms: int) -> ScriptCall[bool]:
    """End one job whose deadline has passed, if a reader sees it before any worker does."""
    return ScriptCall(
        script("expire_one"),
        (*keys.end_keys(job_id), *keys.parking_keys),
        (job_id, positive("ttl_ms", ttl_ms), keys.publish, keys.events(job_id), keys.control),
        bool,
    )


@dataclass(frozen=True, slots=True)
class Forgotten:
    deleted: bool
    state: State | None = None  # of a job that has not ended: nothing was deleted


def forget(keys: ShardKeys, *, job_id: str, keep_cached: bool = False) -> ScriptCall[Forgotten]:
    """Delete the hash and the log of a job that has ended, and unless `keep_cached` its result that is kept
    for equal requests. Passes at maxmemory.
    """
    prefix = "" if keep_cached else keys.cached("")
    return ScriptCall(script("forget"), (keys.job(job_id), keys.tokens(job_id)), (prefix,), _forgotten)


def _forgotten(reply: Any) -> Forgotten:
    match reply.decode():
        case "forgotten":
            return Forgotten(True)
        case "not_found":
            return Forgotten(False)
        case state:
            return Forgotten(False, State(state))
