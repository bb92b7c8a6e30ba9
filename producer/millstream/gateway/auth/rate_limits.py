"""A caller's limits: each request is charged before its job is queued."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from millstream.errors import AccessDenied, Unavailable
from millstream.gateway.auth.api_keys import ApiKey
from millstream.gateway.redis.gateway_calls import ChargeReply, Limits, charge, uncharge
from millstream.gateway.redis.gateway_redis import GatewayRedis
from millstream.gateway.redis.tenant_keys import TenantKeys
from millstream.openai.api_error import NO_RETRY, ApiError, retry_after

_NAMES = {"requests": "requests per minute", "tokens": "tokens per minute", "enqueued": "tokens under way"}


class RateLimits:
    """`ttl_s`: how long a request that nobody takes off counts as under way."""

    def __init__(self, redis: GatewayRedis, ttl_s: float) -> None:
        self._redis = redis
        self._ttl_ms = round(ttl_s * 1000)

    @contextlib.asynccontextmanager
    async def charged(
        self, caller: ApiKey, own_id: str, tokens: int, headers: dict[str, str]
    ) -> AsyncIterator[None]:
        """For as long as the request is under way; adds the state of the limits to `headers`. Raises
        ApiError 429, Unavailable.
        """
        if not caller.is_limited:
            yield
            return
        keys = TenantKeys(caller.tenant)
        call = charge(keys, caller.limits, own_id=own_id, tokens=tokens, ttl_ms=self._ttl_ms)
        reply = await self._redis.run(call)
        headers |= _headers(caller, reply)
        if reply.refused_by:
            raise _refusal(caller, reply, tokens)
        try:
            yield
        finally:
            if caller.max_enqueued_tokens:
                with contextlib.suppress(Unavailable, AccessDenied):  # it is forgotten in time
                    await self._redis.run(uncharge(keys, own_id=own_id, tokens=tokens))

    async def charge_batch(self, caller: ApiKey, own_id: str, tokens: int, ttl_s: float) -> str:
        """Count a batch among the enqueued tokens, not per minute; returns how it stands there, for the
        script that ends the batch, or an empty text if nothing was counted. Raises ApiError 429, Unavailable.
        """
        if not caller.max_enqueued_tokens:
            return ""
        limits = Limits(max_enqueued_tokens=caller.max_enqueued_tokens)
        call = charge(
            TenantKeys(caller.tenant), limits, own_id=own_id, tokens=tokens, ttl_ms=round(ttl_s * 1000)
        )
        reply = await self._redis.run(call)
        if reply.refused_by:
            raise _refusal(caller, reply, tokens)
        return f"{tokens} {own_id}"


def _headers(caller: ApiKey, reply: ChargeReply) -> dict[str, str]:
    told: dict[str, str] = {}
    for name, limit, left, reset_ms in (
        ("requests", caller.requests_per_min, reply.requests_left, reply.requests_reset_ms),
        ("tokens", caller.tokens_per_min, reply.tokens_left, reply.tokens_reset_ms),
    ):
        if limit:
            told[f"x-ratelimit-limit-{name}"] = str(limit)
            told[f"x-ratelimit-remaining-{name}"] = str(left)
            told[f"x-ratelimit-reset-{name}"] = _duration(reset_ms)
    return told


def _refusal(caller: ApiKey, reply: ChargeReply, tokens: int) -> ApiError:
    name = _NAMES[reply.refused_by]
    limit = {
        "requests": caller.requests_per_min,
        "tokens": caller.tokens_per_min,
        "enqueued": caller.max_enqueued_tokens,
    }[reply.refused_by]
    if reply.retry_after_ms < 0:
        message = f"about {tokens} tokens are above this key's limit of {limit} {name}; ask for fewer"
        return ApiError(429, message, "rate_limit_exceeded", headers=NO_RETRY)
    wait_s = reply.retry_after_ms / 1000
    message = f"this key's limit of {limit} {name} is reached; try again in {wait_s:.1f} s"
    return ApiError(429, message, "rate_limit_exceeded", headers=retry_after(wait_s))


def _duration(milliseconds: int) -> str:
    """As OpenAI writes it: 350ms, 1s, 6m0s."""
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, seconds = divmod(round(milliseconds / 1000), 60)
    return f"{minutes}m{seconds}s" if minutes else f"{seconds}s"
