"""The records of batches, in Redis: a hash for each, and a list for each tenant in the order of creation."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from millstream.errors import ProtocolError
from millstream.gateway.batches.records.batch_part import BatchPart
from millstream.gateway.batches.records.batch_record import BatchRecord
from millstream.gateway.batches.records.line_set import LineSet
from millstream.gateway.batches.records.open_batches import OpenBatch, OpenBatches
from millstream.gateway.redis.batch_calls import cancel_batch, create_batch
from millstream.gateway.redis.gateway_redis import GatewayRedis
from millstream.gateway.redis.record_list import RecordList
from millstream.gateway.redis.tenant_keys import BATCH_ID, TenantKeys


@dataclass(frozen=True, slots=True)
class WrittenLines:
    """Lines whose rows are committed. `parts`: all; `lost`: those whose objects are gone, each with its
    lines, which are not in `lines`.
    """

    lines: LineSet
    parts: tuple[BatchPart, ...]
    lost: Mapping[BatchPart, LineSet]


class BatchCatalogue(RecordList[BatchRecord]):
    """All methods raise Unavailable, AccessDenied, ProtocolError."""

    def __init__(self, redis: GatewayRedis) -> None:
        super().__init__(redis, BATCH_ID, lambda keys: keys.batches, TenantKeys.batch, BatchRecord.of)
        self.open = OpenBatches(redis)

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
        await self.open.ensure_scheduled(OpenBatch(tenant, id))
        await self.redis.run(call)
        await self.open.ensure_scheduled(OpenBatch(tenant, id))
        found = await self.find(tenant, id)
        assert found is not None, "an open batch does not expire"
        return found

    async def cancel(self, tenant: str, id: str) -> str | None:
        """The status that it has now; None if there is no such batch."""
        return await self.redis.run(cancel_batch(TenantKeys(tenant), id))

    async def parts(self, batch: BatchRecord, start: int = 0) -> list[BatchPart]:
        """The committed ones, from the place `start` on."""
        with self.redis.reach():
            rows = await self.redis.client.lrange(TenantKeys(batch.tenant).batch_parts(batch.id), start, -1)
        return [BatchPart.of(row.decode()) for row in rows]

    async def written_lines(
        self, batch: BatchRecord, parts: Sequence[BatchPart], lost: Collection[BatchPart], most: int
    ) -> WrittenLines:
        """Reads the lines of the committed `parts`, some of which are lost. `most`: no line of the input has
        a greater number.
        """
        with self.redis.reach():
            rows = await self.redis.client.lrange(TenantKeys(batch.tenant).batch_lines(batch.id), 0, -1)
        if len(rows) < len(parts):
            raise ProtocolError(f"the lines of {batch.id} are damaged: {len(rows)} parts of {len(parts)}")
        written, missing = LineSet(), {part: LineSet() for part in lost}
        try:
            for part, row in zip(parts, rows, strict=False):
                missing.get(part, written).add_ranges(row.decode(), most)
                await asyncio.sleep(0)  # a part may have as many ranges as rows
        except ValueError as error:
            raise ProtocolError(f"the lines of {batch.id} are damaged: {error!s:.100}") from None
        return WrittenLines(written, tuple(parts), missing)
