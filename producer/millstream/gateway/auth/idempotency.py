"""Which POST is a repetition of which: by its Idempotency-Key, or, as OpenAI's clients send none, by their
count of retries.

A POST without a key has an entry in Redis while it is under way, for a day at most. When its client goes,
or it is answered with 500 or above, it is `left` for ten minutes of a window, and one repetition may take
its job over. A
gateway that was killed can say nothing: its entries count as left once it has not been seen for a lease.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from uuid import uuid4

from millstream.errors import MillstreamError
from millstream.gateway.http.api_error import NO_RETRY, ApiError
from millstream.gateway.redis.gateway_calls import (
    OnceOutcome,
    PostEnd,
    PostOutcome,
    PostReply,
    attend,
    claim_once,
    close_post,
    open_post,
)
from millstream.gateway.redis.gateway_redis import ServerAccess
from millstream.gateway.redis.tenant_keys import TenantKeys

WINDOW_S = 600.0
LEASE_S = 3.0
ATTEND_S = 1.0  # between two signs of life
LOOK_S = 0.2  # of a repetition that waits for the end of a lease
KEEP_S = 86_400.0
_LONGEST_KEY = 255


def once_of(tenant: str, headers: Mapping[str, str]) -> str:
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
class Post:
    """One POST under way. `own_id`: its job's. `once`: it has an Idempotency-Key, of this SHA-256."""

    tenant: str
    digest: str
    own_id: str
    queue: str
    joined: bool
    entered: bool = False  # repetitions can find it
    once: str = ""


class Posts:
    """Those that this gateway answers. `attend` runs as long as it does."""

    def __init__(self, access: ServerAccess) -> None:
        self._access = access
        self._replica = uuid4().hex[:16]
        self._open: Counter[str] = Counter()  # by tenant

    async def begin(
        self, tenant: str, path: str, body: bytes, queue: str, headers: Mapping[str, str], own_id: str
    ) -> Post:
        """`own_id`: its job's, unless it joins another POST or has a key. A first POST without a key has no
        entry yet: see `enter`. Raises ApiError 400, 409; Unavailable.
        """
        digest = hashlib.sha256(path.encode() + b"\n" + body).hexdigest()
        if own := once_of(tenant, headers):
            return await self._begin_once(tenant, digest, queue, own)
        count = headers.get("x-stainless-retry-count", "0")
        first = Post(tenant, digest, own_id, queue, joined=False)
        if not (count.isascii() and count.isdecimal() and int(count[:9]) > 0):
            return first
        give_up_s = asyncio.get_running_loop().time() + LEASE_S + ATTEND_S
        while True:
            patient = asyncio.get_running_loop().time() < give_up_s
            reply = await self._write(first, repeated=True, patient=patient)
            if reply.outcome is not PostOutcome.WAIT:
                joined = reply.outcome is PostOutcome.JOINED
                return Post(tenant, digest, reply.own_id, reply.queue, joined, entered=True)
            await asyncio.sleep(LOOK_S)

    async def enter(self, post: Post) -> None:
        """From now on a repetition may find it. Raises Unavailable."""
        if not post.entered:
            await self._write(post, repeated=False, patient=False)

    async def _write(self, post: Post, *, repeated: bool, patient: bool) -> PostReply:
        call = open_post(
            TenantKeys(post.tenant), digest=post.digest, own_id=post.own_id, queue=post.queue,
            replica=self._replica, repeated=repeated, patient=patient,
            window_ms=round(WINDOW_S * 1000), lease_ms=round(LEASE_S * 1000),
            keep_ms=round(KEEP_S * 1000),
        )  # fmt: skip
        return await self._access.run(call)

    async def _begin_once(self, tenant: str, digest: str, queue: str, own: str) -> Post:
        call = claim_once(
            TenantKeys(tenant), key_digest=own, digest=digest, queue=queue, ttl_ms=round(KEEP_S * 1000)
        )
        outcome, queue = await self._access.run(call)
        if outcome is OnceOutcome.CONFLICT:
            raise key_reused()
        return Post(tenant, digest, f"g{own}", queue, outcome is OnceOutcome.SAME, entered=True, once=own)

    @contextlib.contextmanager
    def attended(self, post: Post) -> Iterator[None]:
        """While it is answered here."""
        self._open[post.tenant] += 1
        try:
            yield
        finally:
            self._open[post.tenant] -= 1

    @contextlib.asynccontextmanager
    async def concluded(self, post: Post, is_gone: Callable[[], Awaitable[bool]]) -> AsyncIterator[None]:
        """Says what has become of a POST that makes something else than a job, however it ends. `is_gone`:
        whether its client is; another POST may then join.
        """
        with self.attended(post):
            try:
                await self.enter(post)
                yield
            except asyncio.CancelledError:  # the gateway is stopped
                await self.end(post, PostEnd.LEFT)
                raise
            except ApiError as error:
                if error.status >= 500:
                    await self.end(post, PostEnd.LEFT)
                else:
                    await self.withdraw(post)
                raise
            except Exception:
                with contextlib.suppress(MillstreamError):  # it counts as left when the lease is over
                    await self.end(post, PostEnd.LEFT)
                raise
            await self.end(post, PostEnd.LEFT if await is_gone() else PostEnd.ANSWERED)

    async def end(self, post: Post, how: PostEnd) -> bool:
        """Whether its job is still this gateway's to end. With an Idempotency-Key it never is: whoever has
        the key may ask again.
        """
        if post.once:
            return False
        keys = TenantKeys(post.tenant)
        call = close_post(keys, digest=post.digest, own_id=post.own_id, replica=self._replica, how=how)
        return await self._access.run(call)

    async def withdraw(self, post: Post) -> None:
        """No job was queued for it: nobody can join."""
        if post.joined:
            return
        if post.once:
            with self._access.reach():
                await self._access.redis.delete(TenantKeys(post.tenant).once(post.once))
        else:
            await self.end(post, PostEnd.ANSWERED)

    async def attend(self) -> None:
        """Say for ever that this gateway lives, to each tenant that has a POST here."""
        while True:
            await asyncio.sleep(ATTEND_S)
            self._open = +self._open  # without those at 0
            for tenant in list(self._open):
                with contextlib.suppress(MillstreamError):  # again in a second
                    call = attend(TenantKeys(tenant), replica=self._replica, window_ms=round(WINDOW_S * 1000))
                    await self._access.run(call)
