"""The records of batches, in Redis: a hash for each, a sorted set for each tenant in the order of creation,
and one of all batches that are open.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from millstream.gateway.batches.records.batch_part import BatchPart
from millstream.gateway.batches.records.batch_record import BatchRecord
from millstream.gateway.batches.records.line_set import LineSet
from millstream.gateway.redis.batch_calls import cancel_batch, create_batch
from millstream.gateway.redis.gateway_redis import GatewayRedis
from millstream.gateway.redis.tenant_keys import BATCH_ID, OPEN_BATCHES, TenantKeys
from millstream.wire.calls.scripts import texts

LOOKED_AT = 1000  # open batches, at once
LEAST_LOOKED_AT = 100  # of a tenant's list, at once


@dataclass(frozen=True, slots=True)
class BatchPage:
    records: tuple[BatchRecord, ...]
    has_more: bool


@dataclass(frozen=True, slots=True)
class WrittenLines:
    """Lines whose rows are committed, and in how many parts."""

    lines: LineSet
    parts: int


@dataclass(frozen=True, slots=True)
class OpenBatch:
    """A batch that may be waiting for a gateway."""

    tenant: str
    id: str


class BatchCatalogue:
    """All methods raise Unavailable, AccessDenied, ProtocolError."""

    def __init__(self, redis: GatewayRedis) -> None:
        self._redis = redis

    async def create(
        self,
        tenant: str,
        id: str,
        fields: Mapping[str, str],
        *,
        window_s: int,
        charge: str,
        lasts_s: int,
    ) -> BatchRecord:
        """The record of a new batch, or of the one that has this id already. `charge`: see `create_batch`."""
        call = create_batch(
            TenantKeys(tenant), id, fields, window_s=window_s, charge=charge, lasts_ms=lasts_s * 1000
        )
        # Before, as nobody would look for the batch of a gateway that dies here; and after, as another
        # gateway may have looked too early.
        await self.ensure_scheduled(OpenBatch(tenant, id))
        await self._redis.run(call)
        await self.ensure_scheduled(OpenBatch(tenant, id))
        found = await self.find(tenant, id)
        assert found is not None, "an open batch does not expire"
        return found

    async def find(self, tenant: str, id: str) -> BatchRecord | None:
        if not BATCH_ID.fullmatch(id):
            return None
        with self._redis.reach():
            stored = await self._redis.client.hgetall(TenantKeys(tenant).batch(id))
        return BatchRecord.of(tenant, id, texts(stored)) if stored else None

    async def page(self, tenant: str, *, after: str | None, limit: int) -> BatchPage | None:
        """The newest first, those that were made before the batch `after`; None if there is no such batch."""
        keys, redis = TenantKeys(tenant), self._redis.client
        edge = "+inf"
        if after is not None:
            with self._redis.reach():
                score = await redis.zscore(keys.batches, after)
            if score is None:
                return None
            edge = f"({int(score)}"
        found: list[BatchRecord] = []
        while len(found) <= limit:
            wanted = max(LEAST_LOOKED_AT, limit + 1 - len(found))
            with self._redis.reach():
                rows = await redis.zrevrangebyscore(keys.batches, edge, "-inf", 0, wanted, withscores=True)
            found += await self._records(tenant, [id.decode() for id, _ in rows])
            if len(rows) < wanted:
                break
            edge = f"({int(rows[-1][1])}"
        return BatchPage(tuple(found[:limit]), len(found) > limit)

    async def _records(self, tenant: str, ids: list[str]) -> list[BatchRecord]:
        """Those that have expired are taken off the list."""
        keys, redis = TenantKeys(tenant), self._redis.client
        if not ids:
            return []
        with self._redis.reach():
            async with redis.pipeline(transaction=False) as pipeline:
                for id in ids:
                    pipeline.hgetall(keys.batch(id))
                rows = await pipeline.execute()
            if gone := [id for id, row in zip(ids, rows, strict=True) if not row]:
                await redis.zrem(keys.batches, *gone)
        return [BatchRecord.of(tenant, id, texts(row)) for id, row in zip(ids, rows, strict=True) if row]

    async def cancel(self, tenant: str, id: str) -> str | None:
        """The status that it has now; None if there is no such batch."""
        return await self._redis.run(cancel_batch(TenantKeys(tenant), id))

    async def parts(self, batch: BatchRecord, start: int = 0) -> list[BatchPart]:
        """The committed ones, from the place `start` on."""
        with self._redis.reach():
            rows = await self._redis.client.lrange(TenantKeys(batch.tenant).batch_parts(batch.id), start, -1)
        return [BatchPart.of(row.decode()) for row in rows]

    async def written_lines(self, batch: BatchRecord) -> WrittenLines:
        with self._redis.reach():
            rows = await self._redis.client.lrange(TenantKeys(batch.tenant).batch_lines(batch.id), 0, -1)
        lines = LineSet()
        for row in rows:
            lines.add_ranges(row.decode())
        return WrittenLines(lines, len(rows))

    async def schedule(self, batch: OpenBatch, due_ms: int) -> None:
        """A gateway that has time looks for it from `due_ms` on, by the server's clock."""
        with self._redis.reach():
            await self._redis.client.zadd(OPEN_BATCHES, {f"{batch.tenant} {batch.id}": due_ms})

    async def ensure_scheduled(self, batch: OpenBatch) -> None:
        """Announce one that is not, for now."""
        with self._redis.reach():
            seconds, microseconds = await self._redis.client.time()
            due_ms = seconds * 1000 + microseconds // 1000
            await self._redis.client.zadd(OPEN_BATCHES, {f"{batch.tenant} {batch.id}": due_ms}, nx=True)

    async def unschedule(self, batch: OpenBatch) -> None:
        """It has ended, and nothing is to be done about it any more."""
        with self._redis.reach():
            await self._redis.client.zrem(OPEN_BATCHES, f"{batch.tenant} {batch.id}")

    async def due(self, now_ms: int) -> list[OpenBatch]:
        """Those that have waited longest come first."""
        with self._redis.reach():
            rows = await self._redis.client.zrangebyscore(OPEN_BATCHES, "-inf", now_ms, 0, LOOKED_AT)
        return [OpenBatch(*row.decode().partition(" ")[::2]) for row in rows]

    async def count_open(self) -> int:
        with self._redis.reach():
            return int(await self._redis.client.zcard(OPEN_BATCHES))
