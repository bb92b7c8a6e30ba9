"""The gateway's calls about batches: their records, who carries one out, and what has been written of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from enum import StrEnum
from typing import Any

from millstream.gateway.redis.gateway_calls import gateway_script
from millstream.gateway.redis.tenant_keys import TenantKeys
from millstream.wire.calls.scripts import ScriptCall, positive

LOST = "lost"  # instead of a status: another holds the batch


class TakeOutcome(StrEnum):
    TAKEN = "taken"
    HELD = "held"  # by another
    ENDED = "ended"
    GONE = "gone"  # there is no such batch


@dataclass(frozen=True, slots=True)
class TakeReply:
    """`left_ms`: until the time of a taken batch is over, or until the lease of a held one ends."""

    outcome: TakeOutcome
    left_ms: int = 0


@dataclass(frozen=True, slots=True)
class HoldReply:
    """`status`: LOST if another holds the batch. `left_ms`: until its time is over."""

    status: str
    left_ms: int = 0


@dataclass(frozen=True, slots=True)
class PartCounts:
    """Numbers of rows, and the tokens of those that were completed; a commit adds its own. `expected`: rows
    of lines that expect an answer, which `agreed` of them have.
    """

    completed: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    expected: int = 0
    agreed: int = 0


def create_batch(
    keys: TenantKeys, batch_id: str, fields: Mapping[str, str], *, window_s: int, charge: str, lasts_ms: int
) -> ScriptCall[bool]:
    """Creates a batch; True if there was none of this id until now. `charge`: its entry in `enqueued`, which
    counts it for `lasts_ms`, unless it ends before; empty for one that was not charged.
    """
    args = (batch_id, positive("window_s", window_s), charge, positive("lasts_ms", lasts_ms))
    return ScriptCall(
        gateway_script("create_batch"),
        (keys.batch(batch_id), keys.batches, keys.rates, keys.enqueued),
        (*args, *_pairs(fields)),
        lambda reply: bool(reply.decode() == "created"),
    )


def take_batch(keys: TenantKeys, batch_id: str, *, holder: str, lease_ms: int) -> ScriptCall[TakeReply]:
    """Takes the lease of a batch. `holder`: a new name for each time that a batch is taken."""
    args = (holder, positive("lease_ms", lease_ms))
    return ScriptCall(gateway_script("take_batch"), (keys.batch(batch_id),), args, _taken)


def _taken(reply: Any) -> TakeReply:
    outcome = TakeOutcome(reply[0].decode())
    return TakeReply(outcome, int(reply[1]) if len(reply) > 1 else 0)


def renew_batch(
    keys: TenantKeys, batch_id: str, *, holder: str, lease_ms: int, live_tokens: int = 0
) -> ScriptCall[HoldReply]:
    """Renew the lease; with `lease_ms` 0, give it back. `live_tokens`: output of rows that are not counted
    yet.
    """
    args = (holder, lease_ms, live_tokens)
    return ScriptCall(gateway_script("renew_batch"), (keys.batch(batch_id),), args, _held)


def _held(reply: Any) -> HoldReply:
    if reply[0].decode() == LOST:
        return HoldReply(LOST)
    return HoldReply(reply[1].decode(), int(reply[2]))


def commit_part(
    keys: TenantKeys,
    batch_id: str,
    *,
    holder: str,
    counts: PartCounts,
    parts: Sequence[tuple[str, str]],
    behind: int,
) -> ScriptCall[bool]:
    """Adds written parts. `parts`: each with the numbers of its lines; `behind`: how many parts there are
    already. False: another holds the batch, or there are more parts than that.
    """
    return ScriptCall(
        gateway_script("commit_part"),
        (keys.batch(batch_id), keys.batch_parts(batch_id), keys.batch_lines(batch_id)),
        (holder, behind, *astuple(counts), *(text for pair in parts for text in pair)),
        lambda reply: bool(reply.decode() == "ok"),
    )


def restore_part(
    keys: TenantKeys, batch_id: str, *, holder: str, place: int, before: str, after: str, counts: PartCounts
) -> ScriptCall[bool]:
    """Puts a part in the place of one that was lost. `counts`: what is added, or taken off, by rows that have
    other results now. False: another holds the batch, or another part is in that place.
    """
    return ScriptCall(
        gateway_script("restore_part"),
        (keys.batch(batch_id), keys.batch_parts(batch_id)),
        (holder, place, before, after, counts.completed, counts.failed),
        lambda reply: bool(reply.decode() == "ok"),
    )


def move_batch(
    keys: TenantKeys,
    batch_id: str,
    fields: Mapping[str, str],
    *,
    holder: str,
    change: tuple[str, str],
    ttl_ms: int,
) -> ScriptCall[str]:
    """Returns the status that the batch has now, or LOST. `change`: from this status to that one."""
    return ScriptCall(
        gateway_script("move_batch"),
        (
            keys.batch(batch_id),
            keys.batch_parts(batch_id),
            keys.batch_lines(batch_id),
            keys.rates,
            keys.enqueued,
        ),
        (holder, *change, positive("ttl_ms", ttl_ms), *_pairs(fields)),
        lambda reply: str(reply.decode()),
    )


def cancel_batch(keys: TenantKeys, batch_id: str) -> ScriptCall[str | None]:
    """Cancels a batch; returns the status that it has now, None if there is no such batch."""
    return ScriptCall(
        gateway_script("cancel_batch"),
        (keys.batch(batch_id),),
        (),
        lambda reply: None if reply == b"not_found" else str(reply.decode()),
    )


def _pairs(fields: Mapping[str, str]) -> list[str]:
    return [text for pair in fields.items() for text in pair]
