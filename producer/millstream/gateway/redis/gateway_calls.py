"""The gateway's calls: charge a tenant, and tell a repeated POST from a new one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from enum import StrEnum
from typing import Any

from millstream.gateway.redis.tenant_keys import TenantKeys
from millstream.wire.calls.scripts import Script, ScriptCall, positive, script

GATEWAY = "millstream.gateway.redis"


def gateway_script(name: str) -> Script:
    """Returns one of the gateway's own scripts, in `lua/` beside this file."""
    return script(name, GATEWAY)


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one API key; 0: none."""

    requests_per_min: int = 0
    tokens_per_min: int = 0
    max_enqueued_tokens: int = 0


@dataclass(frozen=True, slots=True)
class ChargeReply:
    """`refused_by`: the limit, or empty. `retry_after_ms` -1: the request exceeds it, and no wait helps."""

    refused_by: str
    retry_after_ms: int
    requests_left: int
    requests_reset_ms: int
    tokens_left: int
    tokens_reset_ms: int


class RequestOutcome(StrEnum):
    NEW = "new"
    JOINED = "joined"
    WAIT = "wait"  # others of the same body are open: one of them may be this one's


class OnceOutcome(StrEnum):
    NEW = "new"
    SAME = "same"
    CONFLICT = "conflict"


class RequestEnd(StrEnum):
    ANSWERED = "answered"
    LEFT = "left"  # a repeated one may join
    ABANDONED = "abandoned"  # it was left, and nobody has joined


@dataclass(frozen=True, slots=True)
class RequestReply:
    outcome: RequestOutcome
    own_id: str = ""
    queue: str = ""


def charge(
    keys: TenantKeys, limits: Limits, *, id: str, tokens: int, ttl_ms: int, gateway: str, gateway_ms: int
) -> ScriptCall[ChargeReply]:
    """Charge a request of so many tokens, prompt and answer. `ttl_ms`: it counts as enqueued for so long,
    unless it is uncharged before. `gateway_ms`: the gateway's monotonic clock.
    """
    return ScriptCall(
        gateway_script("charge"),
        (keys.rates, keys.enqueued, keys.seen(gateway)),
        (
            id,
            positive("tokens", tokens),
            *astuple(limits),
            positive("ttl_ms", ttl_ms),
            gateway_ms,
        ),
        _charged,
    )


def _charged(reply: Any) -> ChargeReply:
    outcome, *numbers = reply
    refused_by = outcome.decode()
    return ChargeReply("" if refused_by == "ok" else refused_by, *map(int, numbers))


def uncharge(keys: TenantKeys, ended: Sequence[str]) -> ScriptCall[None]:
    """Ends requests, as they stand in `enqueued`: their tokens are enqueued no more."""
    return ScriptCall(gateway_script("uncharge"), (keys.rates, keys.enqueued), tuple(ended), lambda _: None)


def open_request(
    keys: TenantKeys,
    *,
    digest: str,
    own_id: str,
    queue: str,
    replica: str,
    repeated: bool,
    patient: bool,
    window_ms: int,
    lease_ms: int,
    keep_ms: int,
) -> ScriptCall[RequestReply]:
    """Begins a POST, which is remembered for `keep_ms`. `repeated`: its client says that it repeats one; then
    it takes over one that was left within `window_ms`. `patient`: if there are open ones only, the reply is
    WAIT and nothing has begun.
    """
    return ScriptCall(
        gateway_script("open_request"),
        (keys.posts(digest), keys.replicas),
        (
            own_id,
            queue,
            replica,
            "1" if repeated else "",
            "1" if patient else "",
            positive("window_ms", window_ms),
            positive("lease_ms", lease_ms),
            positive("keep_ms", keep_ms),
        ),
        _opened,
    )


def _opened(reply: Any) -> RequestReply:
    outcome, *rest = (part.decode() for part in reply)
    return RequestReply(RequestOutcome(outcome), *rest)


def close_request(
    keys: TenantKeys, *, digest: str, own_id: str, replica: str, how: RequestEnd
) -> ScriptCall[bool]:
    """Ends a POST; True if it was this replica's until now."""
    return ScriptCall(
        gateway_script("close_request"),
        (keys.posts(digest),),
        (own_id, replica, how),
        lambda reply: bool(reply.decode() == "ok"),
    )


def gateway_alive(keys: TenantKeys, *, replica: str, window_ms: int) -> ScriptCall[None]:
    """Reports that the replica still answers its open POSTs of the tenant."""
    return ScriptCall(
        gateway_script("gateway_alive"),
        (keys.replicas,),
        (replica, positive("window_ms", window_ms)),
        lambda _: None,
    )


def claim_once(
    keys: TenantKeys, *, key_digest: str, digest: str, queue: str, ttl_ms: int
) -> ScriptCall[tuple[OnceOutcome, str]]:
    """Remember a POST by its Idempotency-Key; returns the queue of the first one with it, too."""
    return ScriptCall(
        gateway_script("claim_once"),
        (keys.once(key_digest),),
        (digest, queue, positive("ttl_ms", ttl_ms)),
        lambda reply: (OnceOutcome(reply[0].decode()), reply[1].decode()),
    )
