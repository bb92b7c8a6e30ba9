"""Detects repeated POSTs: by Idempotency-Key or, as OpenAI's clients send none, by their count of retries.

A POST without a key has an entry in Redis while it is under way, for a day at most. When its client goes,
or it is answered with 500 or above, it is `left` for ten minutes, and one repetition may take its job over.
Entries of a gateway that was killed count as left once it has not been seen for a lease.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Protocol
from uuid import uuid4

from millstream.errors import MillstreamError, NotReady, Unavailable
from millstream.gateway.auth.api_keys import ApiKey
from millstream.gateway.http.client_disconnect import ClientDisconnected
from millstream.gateway.redis.gateway_calls import (
    OnceOutcome,
    RequestEnd,
    RequestOutcome,
    RequestReply,
    claim_once,
    close_request,
    gateway_alive,
    open_request,
)
from millstream.gateway.redis.gateway_redis import GatewayRedis
from millstream.gateway.redis.tenant_keys import TenantKeys
from millstream.logs.failure_log import FailureLog
from millstream.openai.api_error import NO_RETRY, ApiError, api_error

WINDOW_S = 600.0
LEASE_S = 3.0
ALIVE_S = 1.0  # between two signs of life
LOOK_S = 0.2  # of a repetition that waits for the end of a lease
KEEP_S = 86_400.0
_LONGEST_KEY = 255


def idempotency_digest(tenant: str, headers: Mapping[str, str]) -> str:
    """SHA-256 of tenant and Idempotency-Key; empty without one. Raises ApiError 400."""
    if (key := headers.get("idempotency-key")) is None:
        return ""
    if not 1 <= len(key) <= _LONGEST_KEY:
        message = f"Idempotency-Key: give 1 to {_LONGEST_KEY} characters (got {len(key)})"
        raise ApiError(400, message, "invalid_value", "Idempotency-Key")
    return hashlib.sha256(f"{tenant}\n{key}".encode()).hexdigest()


def key_reused() -> ApiError:
    message = "this Idempotency-Key was used for another request within 24 h; choose another one"
    return ApiError(409, message, "idempotency_key_reused", "Idempotency-Key", NO_RETRY)


@dataclass(frozen=True, slots=True)
class IdempotentRequest:
    """One POST under way. `own_id`: its job's. `once`: it has an Idempotency-Key, of this SHA-256."""

    tenant: str
    digest: str
    own_id: str
    queue: str
    joined: bool
    entered: bool = False  # repetitions can find it
    once: str = ""


class JobOfRequest(Protocol):
    """The job of a POST. `grace_s`: how long it goes on without its client."""

    grace_s: float

    @property
    def is_queued(self) -> bool: ...

    async def cancel(self) -> None: ...

    async def abandon(self) -> None:
        """Cancel it, as its client has gone."""
        ...

    async def forget(self) -> None: ...


class Idempotency:
    """The POSTs of this gateway. `run` goes on as long as it does."""

    def __init__(self, redis: GatewayRedis) -> None:
        self._redis = redis
        self._replica = uuid4().hex[:16]
        self._open: Counter[str] = Counter()  # by tenant
        self._unstored = FailureLog("ends of requests not stored: repetitions wait for a lease")

    async def begin(
        self, caller: ApiKey, path: str, body: bytes, queue: str, headers: Mapping[str, str], own_id: str
    ) -> IdempotentRequest:
        """`queue`: what the body means for this caller. `own_id`: its job's, unless it joins another POST or
        has a key. A first POST without a key has no entry yet: see `enter`. Raises ApiError 400, 409;
        Unavailable.
        """
        tenant = caller.tenant
        if own := idempotency_digest(tenant, headers):
            digest = hashlib.sha256(f"{path}\n".encode() + body).hexdigest()
            return await self._begin_once(caller, digest, queue, own)
        digest = hashlib.sha256(f"{path}\n{queue}\n".encode() + body).hexdigest()
        count = headers.get("x-stainless-retry-count", "0")
        first = IdempotentRequest(tenant, digest, own_id, queue, joined=False)
        if not (count.isascii() and count.isdecimal() and int(count[:9]) > 0):
            return first
        give_up_s = asyncio.get_running_loop().time() + LEASE_S + ALIVE_S
        while True:
            patient = asyncio.get_running_loop().time() < give_up_s
            reply = await self._write(first, repeated=True, patient=patient)
            if reply.outcome is not RequestOutcome.WAIT:
                joined = reply.outcome is RequestOutcome.JOINED
                return IdempotentRequest(tenant, digest, reply.own_id, reply.queue, joined, entered=True)
            await asyncio.sleep(LOOK_S)

    async def enter(self, post: IdempotentRequest) -> None:
        """From now on a repetition may find it. Raises Unavailable."""
        if not post.entered:
            await self._write(post, repeated=False, patient=False)

    async def _write(self, post: IdempotentRequest, *, repeated: bool, patient: bool) -> RequestReply:
        call = open_request(
            TenantKeys(post.tenant), digest=post.digest, own_id=post.own_id, queue=post.queue,
            replica=self._replica, repeated=repeated, patient=patient,
            window_ms=round(WINDOW_S * 1000), lease_ms=round(LEASE_S * 1000),
            keep_ms=round(KEEP_S * 1000),
        )  # fmt: skip
        return await self._redis.run(call)

    async def _begin_once(self, caller: ApiKey, digest: str, queue: str, own: str) -> IdempotentRequest:
        keys = TenantKeys(caller.tenant)
        call = claim_once(keys, key_digest=own, digest=digest, queue=queue, ttl_ms=round(KEEP_S * 1000))
        outcome, first_queue = await self._redis.run(call)
        if outcome is OnceOutcome.CONFLICT or not (first_queue == queue or caller.may_use(first_queue)):
            raise key_reused()
        joined = outcome is OnceOutcome.SAME
        return IdempotentRequest(
            caller.tenant, digest, f"g{own}", first_queue, joined, entered=True, once=own
        )

    @contextlib.asynccontextmanager
    async def tracked(self, post: IdempotentRequest, job: JobOfRequest | None = None) -> AsyncIterator[None]:
        """Encloses the response to a POST, and records how it ended. A request whose client has gone, or that
        failed, may be repeated and then joins this one. `job` is cancelled when nobody can ask for it again,
        and forgotten when its answer was sent.
        """
        self._open[post.tenant] += 1
        try:
            yield
        except ClientDisconnected:
            await self._leave(post, job)
            raise
        except asyncio.CancelledError:  # the gateway is stopped
            await self._end(post, RequestEnd.LEFT)
            raise
        except Exception as error:
            await self._fail(post, job, error)
            raise
        else:
            if await self._end(post, RequestEnd.ANSWERED) and job is not None:
                await job.forget()
        finally:
            self._open[post.tenant] -= 1

    async def _leave(self, post: IdempotentRequest, job: JobOfRequest | None) -> None:
        """Cancel the job after the grace, unless a repeated POST has joined it."""
        if not await self._end(post, RequestEnd.LEFT) or job is None or not job.is_queued:
            return
        await asyncio.sleep(job.grace_s)
        if await self._end(post, RequestEnd.ABANDONED):
            await job.abandon()

    async def _fail(self, post: IdempotentRequest, job: JobOfRequest | None, error: Exception) -> None:
        queued = job if job is not None and job.is_queued else None
        told = api_error(error) if isinstance(error, MillstreamError) else error
        if not isinstance(told, ApiError) or told.status >= 500:
            ours = await self._end(post, RequestEnd.LEFT)
            if ours and queued is not None and isinstance(error, NotReady):
                await queued.cancel()
        elif queued is not None:
            await self._end(post, RequestEnd.ANSWERED)
        else:
            with contextlib.suppress(MillstreamError):
                await self._withdraw(post)

    async def _end(self, post: IdempotentRequest, how: RequestEnd) -> bool:
        """Returns True if its job is still ours to end. With an Idempotency-Key it never is: whoever
        has the key may ask again.
        """
        if post.once:
            return False
        keys = TenantKeys(post.tenant)
        call = close_request(keys, digest=post.digest, own_id=post.own_id, replica=self._replica, how=how)
        try:
            return await self._redis.run(call)
        except MillstreamError as error:  # its entry counts as left when the lease is over
            if not isinstance(error, Unavailable):
                self._unstored.failed(tenant=post.tenant, error=str(error))
            return False

    async def _withdraw(self, post: IdempotentRequest) -> None:
        """No job was queued for it: nobody can join."""
        if post.joined:
            return
        if post.once:
            with self._redis.reach():
                await self._redis.client.delete(TenantKeys(post.tenant).once(post.once))
        else:
            await self._end(post, RequestEnd.ANSWERED)

    async def run(self) -> None:
        """Say for ever that this gateway lives, to each tenant that has a POST here."""
        while True:
            await asyncio.sleep(ALIVE_S)
            self._open = +self._open  # without those at 0
            for tenant in list(self._open):
                with contextlib.suppress(MillstreamError):  # again in a second
                    call = gateway_alive(
                        TenantKeys(tenant), replica=self._replica, window_ms=round(WINDOW_S * 1000)
                    )
                    await self._redis.run(call)
