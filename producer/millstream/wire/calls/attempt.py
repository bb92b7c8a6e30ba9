"""A worker's calls about one delivered job: from start to finish, retry or release.

Each takes the worker's `Claim` and is refused as `fenced` once the job no longer belongs to that attempt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from millstream.wire.calls.scripts import ScriptCall, positive, script
from millstream.wire.keys import ShardKeys
from millstream.wire.messages.job_messages import State, Timing
from millstream.wire.messages.record import log_entry, number
from millstream.wire.messages.script_replies import (
    AppendOutcome,
    AppendReply,
    Claim,
    EndOutcome,
    RenewReply,
    StartReply,
)


@dataclass(frozen=True, slots=True)
class Keep:
    """Caches a result for equal requests under their key's `digest` (empty: not), within `most_bytes` of such
    results per shard.
    """

    digest: str = ""
    most_bytes: int = 0


NOT_KEPT = Keep()
_NOW = Timing()  # without the worker's times the server takes its own


def start(
    keys: ShardKeys,
    claim: Claim,
    *,
    lane: str,
    nonce: str,
    model_digest: str = "",
    force_at_maxmemory: bool = False,
) -> ScriptCall[StartReply]:
    """Start an attempt at an entry that was delivered to the claim's owner. `nonce` is new for each attempt,
    and the same when the call is repeated. At maxmemory it fails and nothing is written, unless
    `force_at_maxmemory`: finishing the job will free its payload. The first start sets its seed. Nothing is
    started where the shard serves a model of another digest than the worker's; "": it is not known.
    """
    job_id = claim.job_id
    channel = keys.events(job_id)
    return ScriptCall(
        script("start"),
        (keys.job(job_id), keys.tokens(job_id), keys.lane(lane), keys.model),
        (
            claim.entry_id,
            claim.owner,
            nonce,
            keys.publish,
            channel,
            "1" if force_at_maxmemory else "",
            seed_of(job_id),
            model_digest,
        ),
        _started,
    )


def seed_of(job_id: str) -> int:
    """The job's sampling seed: below 2^53, which every JSON reader and double keeps exactly."""
    return int.from_bytes(blake2b(job_id.encode(), digest_size=8).digest(), "big") >> 11


def _started(reply: Any) -> StartReply:
    if not reply:
        return StartReply(started=False)
    if len(reply) == 1:
        return StartReply(started=False, served=reply[0].decode())
    *counts, cancelled, submitted_ms, started_ms, compiled_ms, admitted_ms, first_token_ms, seed, log = reply
    times = [number(time or None) for time in (started_ms, compiled_ms, admitted_ms, first_token_ms)]
    entries = tuple(log_entry(entry_id, fields) for entry_id, fields in log)
    made: list[Any] = [*counts, bool(cancelled), submitted_ms, *times, int(seed), entries]
    return StartReply(True, "", *made)  # in the order of its fields


def isolate(
    keys: ShardKeys,
    claim: Claim,
    *,
    alone: bool,
    died: int,
    died_alone: int,
) -> ScriptCall[EndOutcome]:
    """Record whether the attempt has its engine for itself: a later `reclaim` then charges it as such. Deaths
    are totals. Passes at maxmemory.
    """
    return ScriptCall(
        script("isolate"),
        (keys.job(claim.job_id),),
        (*claim.fence, "1" if alone else "", died, died_alone),
        end_outcome,
    )


def append(
    keys: ShardKeys,
    claim: Claim,
    *,
    seq: int,
    body: bytes,
    publish: bool,
    timing: Timing = _NOW,
) -> ScriptCall[AppendReply]:
    """Append one delta. `timing` is stored with the job's first delta: its compiled format, admission and
    first token. At maxmemory it fails and nothing is written.
    """
    channel = keys.events(claim.job_id) if publish else ""
    return ScriptCall(
        script("append"),
        (keys.job(claim.job_id), keys.tokens(claim.job_id)),
        (*claim.fence, seq, body, keys.publish, channel, *_begins(timing)),
        lambda reply: AppendReply(AppendOutcome(reply[0].decode()), reply[1]),
    )


def renew(
    keys: ShardKeys, *, lane: str, owner: str, held: Sequence[tuple[str, str]]
) -> ScriptCall[RenewReply]:
    """Renew leases. `held`: (job id, entry id) pairs of one lane, started or not. An entry whose job has
    ended is lost.
    """
    return ScriptCall(
        script("renew"),
        (keys.lane(lane), *(keys.job(job_id) for job_id, _ in held)),
        (owner, *(part for pair in held for part in pair)),
        lambda reply: RenewReply(*(tuple(job_id.decode() for job_id in ids) for ids in reply)),
    )


def finish(
    keys: ShardKeys,
    claim: Claim,
    *,
    lane: str,
    state: State,
    result: bytes,
    seq: int,
    delta: bytes | None,
    ttl_ms: int,
    timing: Timing = _NOW,
    keep: Keep = NOT_KEPT,
) -> ScriptCall[EndOutcome]:
    """End a job with its result. `seq` is that of `delta`, or of the end marker without one; the end marker
    follows the delta.

    `timing` is the result's. A delta that was appended before is not written again. Passes at maxmemory.
    """
    if not state.terminal:
        raise ValueError(f"a job cannot finish as {state}")
    return ScriptCall(
        script("finish"),
        (*keys.end_keys(claim.job_id), keys.lane(lane), *keys.cache),
        (
            claim.job_id,
            *claim.fence,
            state,
            result,
            seq,
            "" if delta is None else "1",
            delta or b"",
            positive("ttl_ms", ttl_ms),
            keys.publish,
            keys.events(claim.job_id),
            *_ends(timing),
            keep.digest,
            keys.cached(""),
            keep.most_bytes,
        ),
        end_outcome,
    )


def dead_letter(
    keys: ShardKeys,
    claim: Claim,
    *,
    lane: str,
    reason: str,
    result: bytes,
    ttl_ms: int,
    max_dead: int,
    timing: Timing = _NOW,
) -> ScriptCall[EndOutcome]:
    """Dead-letter a job: it ends as failed, and its request is kept in the bounded `dead` stream. `timing` is
    the result's.
    """
    return ScriptCall(
        script("dead_letter"),
        (*keys.end_keys(claim.job_id), keys.lane(lane), keys.dead),
        (
            claim.job_id,
            *claim.fence,
            reason,
            result,
            positive("ttl_ms", ttl_ms),
            positive("max_dead", max_dead),
            keys.publish,
            keys.events(claim.job_id),
            *_ends(timing),
        ),
        end_outcome,
    )


def retry(
    keys: ShardKeys,
    claim: Claim,
    *,
    lane: str,
    delay_ms: int,
    died: int = 0,
    died_alone: int = 0,
) -> ScriptCall[EndOutcome]:
    """Park the job; it returns to its lane after `delay_ms`. Deaths are totals: of engines and workers that
    had it, and of those that had nothing else. Passes at maxmemory.
    """
    return ScriptCall(
        script("retry"),
        (keys.job(claim.job_id), keys.lane(lane), keys.delayed),
        (claim.job_id, *claim.fence, delay_ms, died, died_alone),
        end_outcome,
    )


def release(
    keys: ShardKeys,
    claim: Claim,
    *,
    lane: str,
    died: int = 0,
    died_alone: int = 0,
) -> ScriptCall[EndOutcome]:
    """Release a job, charged only with these deaths (totals). Passes at maxmemory."""
    return ScriptCall(
        script("release"),
        (keys.job(claim.job_id), keys.lane(lane)),
        (claim.job_id, *claim.fence, keys.publish, keys.control, died, died_alone),
        end_outcome,
    )


def _ends(timing: Timing) -> tuple[int | str, ...]:
    """The times of a result, as arguments: the hash gets the same."""
    return (*_begins(timing), _ms(timing.finished_ms))


def _begins(timing: Timing) -> tuple[int | str, ...]:
    return tuple(_ms(time) for time in (timing.compiled_ms, timing.admitted_ms, timing.first_token_ms))


def _ms(time: int | None) -> int | str:
    return "" if time is None else time


def end_outcome(reply: Any) -> EndOutcome:
    return EndOutcome(reply.decode())
