"""Keeps a list of open batches for each tenant, and a list of the tenants, which are looked at in turn.

A tenant's list has its batches by when a gateway should look at them; the list of tenants has each by when
its next turn is. Both by the server's clock, in Unix milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass

from millstream.gateway.redis.gateway_redis import GatewayRedis
from millstream.gateway.redis.tenant_keys import BATCH_ID, OPEN_BATCHES, OPEN_TENANTS, TENANT, TenantKeys

MOST_TENANTS = 1000  # looked at, at once
MOST_OF_TENANT = 32
ADOPTED = 500  # at once, of those that gateways of older versions have announced


@dataclass(frozen=True, slots=True)
class OpenBatch:
    """A batch that may be waiting for a gateway."""

    tenant: str
    id: str


class OpenBatches:
    """All methods raise Unavailable, AccessDenied."""

    def __init__(self, redis: GatewayRedis) -> None:
        self._redis = redis

    async def schedule(self, batch: OpenBatch, due_ms: int) -> None:
        """Has a gateway that has time look for the batch from `due_ms` on."""
        await self._put(batch, due_ms, only_new=False)

    async def ensure_scheduled(self, batch: OpenBatch) -> None:
        """Schedules a batch that is not, for now."""
        with self._redis.reach():
            seconds, microseconds = await self._redis.client.time()
        await self._put(batch, seconds * 1000 + microseconds // 1000, only_new=True)

    async def _put(self, batch: OpenBatch, due_ms: int, *, only_new: bool) -> None:
        with self._redis.reach():
            redis = self._redis.client
            await redis.zadd(TenantKeys(batch.tenant).open_batches, {batch.id: due_ms}, nx=only_new)
            await redis.zadd(OPEN_TENANTS, {batch.tenant: due_ms}, lt=True)

    async def unschedule(self, batch: OpenBatch, now_ms: int) -> None:
        """Takes off a batch that has ended; its tenant's turn comes, as it may have no other."""
        with self._redis.reach():
            await self._redis.client.zrem(TenantKeys(batch.tenant).open_batches, batch.id)
            await self._redis.client.zadd(OPEN_TENANTS, {batch.tenant: now_ms}, lt=True, xx=True)

    async def tenants_due(self, now_ms: int) -> list[str]:
        """Returns the tenants whose turn it is, who has waited longest first."""
        with self._redis.reach():
            rows = await self._redis.client.zrangebyscore(OPEN_TENANTS, "-inf", now_ms, 0, MOST_TENANTS)
            found = [(row, _text(row)) for row in rows]
            if damaged := [row for row, tenant in found if not TENANT.fullmatch(tenant)]:
                await self._redis.client.zrem(OPEN_TENANTS, *damaged)
        return [tenant for _, tenant in found if TENANT.fullmatch(tenant)]

    async def due(self, tenant: str, now_ms: int) -> list[OpenBatch]:
        """Returns batches of the tenant that are due, who has waited longest first."""
        key = TenantKeys(tenant).open_batches
        with self._redis.reach():
            rows = await self._redis.client.zrangebyscore(key, "-inf", now_ms, 0, MOST_OF_TENANT)
            found = [(row, _text(row)) for row in rows]
            if damaged := [row for row, id in found if not BATCH_ID.fullmatch(id)]:
                await self._redis.client.zrem(key, *damaged)
        return [OpenBatch(tenant, id) for _, id in found if BATCH_ID.fullmatch(id)]

    async def end_turn(self, tenant: str, now_ms: int) -> None:
        """Puts the tenant behind those whose turn it is now, until the first of its batches is due."""
        redis = self._redis.client
        with self._redis.reach():
            first_ms = await self._first_ms(tenant)
            if first_ms is None:
                await redis.zrem(OPEN_TENANTS, tenant)
            else:
                await redis.zadd(OPEN_TENANTS, {tenant: max(now_ms, first_ms)})
            # What came or went in between has found the tenant's turn as it was before.
            again_ms = await self._first_ms(tenant)
            if again_ms != first_ms:
                await redis.zadd(OPEN_TENANTS, {tenant: max(now_ms, again_ms or now_ms)}, lt=True)

    async def put_off(self, tenant: str, due_ms: int) -> None:
        """Gives the tenant no turn until `due_ms`."""
        with self._redis.reach():
            await self._redis.client.zadd(OPEN_TENANTS, {tenant: due_ms})

    async def _first_ms(self, tenant: str) -> int | None:
        key = TenantKeys(tenant).open_batches
        rows = await self._redis.client.zrange(key, 0, 0, withscores=True)
        return int(rows[0][1]) if rows else None

    async def adopt(self) -> None:
        """Lists batches that gateways of older versions have announced, which have one list for all."""
        redis = self._redis.client
        with self._redis.reach():
            rows = await redis.zrange(OPEN_BATCHES, 0, ADOPTED - 1, withscores=True)
        for member, due_ms in rows:
            tenant, _, id = _text(member).partition(" ")
            if TENANT.fullmatch(tenant) and BATCH_ID.fullmatch(id):
                await self._put(OpenBatch(tenant, id), int(due_ms), only_new=True)
            with self._redis.reach():
                await redis.zrem(OPEN_BATCHES, member)

    async def count(self) -> int:
        """Returns the number of open batches, of the first tenants if there are very many."""
        with self._redis.reach():
            rows = await self._redis.client.zrange(OPEN_TENANTS, 0, MOST_TENANTS - 1)
            async with self._redis.client.pipeline(transaction=False) as pipeline:
                for tenant in map(_text, rows):
                    if TENANT.fullmatch(tenant):
                        pipeline.zcard(TenantKeys(tenant).open_batches)
                counts = await pipeline.execute(raise_on_error=False)
        return sum(count for count in counts if isinstance(count, int))  # others are errors of damaged lists


def _text(stored: bytes) -> str:
    """Returns what no name is, if it cannot be read."""
    return stored.decode("utf-8", "replace")
