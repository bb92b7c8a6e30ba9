"""The lease of one batch: who holds it may write, and writes nothing more once another has taken it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from typing import Never, Self
from uuid import uuid4

from millstream.errors import MillstreamError, Unavailable
from millstream.gateway.batches.records.batch_record import BatchStatus
from millstream.gateway.batches.records.open_batches import OpenBatch
from millstream.gateway.redis.batch_calls import (
    LOST,
    PartCounts,
    TakeOutcome,
    TakeReply,
    commit_part,
    move_batch,
    renew_batch,
    restore_part,
    take_batch,
)
from millstream.gateway.redis.gateway_redis import GatewayRedis
from millstream.gateway.redis.tenant_keys import TenantKeys

LONGEST_PAUSE_S = 1.0  # between two renewals: they also tell that the batch is to end
KEPT_S = 30 * 86_400  # the record of a batch that has ended
_GIVING_BACK_S = 2.0


class LeaseLost(Exception):
    """Another gateway has taken the batch."""


class BatchInterrupted(Exception):
    """It was cancelled, or its time is over."""


class BatchLease:
    """Made by `take`. `renew` runs as long as the batch is worked on."""

    def __init__(self, redis: GatewayRedis, batch: OpenBatch, holder: str, lease_s: float) -> None:
        self.holder = holder
        self.live_tokens = 0  # of rows under way, told with each renewal
        self._redis = redis
        self._id = batch.id
        self._keys = TenantKeys(batch.tenant)
        self._lease_ms = round(lease_s * 1000)
        self._pause_s = min(lease_s / 3, LONGEST_PAUSE_S)
        self._interrupted = asyncio.Event()
        self._ends_s = 0.0  # of the monotonic clock

    @classmethod
    async def take(cls, redis: GatewayRedis, batch: OpenBatch, lease_s: float) -> tuple[TakeReply, Self]:
        """The lease is one if the reply says TAKEN. Raises Unavailable, AccessDenied."""
        lease = cls(redis, batch, uuid4().hex, lease_s)
        call = take_batch(lease._keys, batch.id, holder=lease.holder, lease_ms=lease._lease_ms)
        reply = await redis.run(call)
        if reply.outcome is TakeOutcome.TAKEN:
            lease._note(reply.left_ms)
        return reply, lease

    @property
    def left_s(self) -> float:
        """Until the time of the batch is over, by the server's clock."""
        return self._ends_s - time.monotonic()

    async def renew(self) -> Never:
        """Raises LeaseLost. While the server does not answer, which the log has, it tries again."""
        while True:
            await asyncio.sleep(self._pause_s)
            try:
                call = renew_batch(
                    self._keys,
                    self._id,
                    holder=self.holder,
                    lease_ms=self._lease_ms,
                    live_tokens=self.live_tokens,
                )
                reply = await self._redis.run(call)
            except Unavailable:
                continue
            if reply.status == LOST:
                raise LeaseLost
            self._note(reply.left_ms)
            if reply.status == BatchStatus.CANCELLING:
                self._interrupted.set()

    def _note(self, left_ms: int) -> None:
        self._ends_s = time.monotonic() + left_ms / 1000
        if left_ms <= 0:
            self._interrupted.set()

    async def interruption(self) -> Never:
        """Raises BatchInterrupted when it was cancelled, or its time is over."""
        await self._interrupted.wait()
        raise BatchInterrupted

    async def release(self) -> None:
        """Another gateway may take it at once."""
        with contextlib.suppress(MillstreamError, TimeoutError):  # it ends by itself
            async with asyncio.timeout(_GIVING_BACK_S):
                await self._redis.run(renew_batch(self._keys, self._id, holder=self.holder, lease_ms=0))

    async def move(self, before: BatchStatus, after: BatchStatus, **fields: str) -> BatchStatus:
        """The status that it has now. Raises LeaseLost, Unavailable."""
        call = move_batch(
            self._keys, self._id, fields, holder=self.holder, change=(before, after), ttl_ms=KEPT_S * 1000
        )
        status = await self._redis.run(call)
        if status == LOST:
            raise LeaseLost
        return BatchStatus(status)

    async def commit(self, counts: PartCounts, parts: Sequence[tuple[str, str]], behind: int) -> None:
        """Parts, each with its lines, behind so many others. Raises LeaseLost, also if there are more than
        those: a commit whose reply was not waited for has come late; Unavailable.
        """
        call = commit_part(
            self._keys, self._id, holder=self.holder, counts=counts, parts=parts, behind=behind
        )
        if not await self._redis.run(call):
            raise LeaseLost
        self.live_tokens = max(0, self.live_tokens - counts.output_tokens)  # as the script does

    async def restore(self, place: int, before: str, after: str, counts: PartCounts) -> None:
        """Puts a part in the place of a lost one. Raises LeaseLost, Unavailable."""
        call = restore_part(
            self._keys, self._id, holder=self.holder, place=place, before=before, after=after, counts=counts
        )
        if not await self._redis.run(call):
            raise LeaseLost
