"""Deletes parts of batches: a day after the batch has ended, or once its record is lost."""

from __future__ import annotations

import time
from typing import Never

from millstream.gateway.batches.records.batch_catalogue import BatchCatalogue
from millstream.gateway.batches.records.batch_part import owner_of_part
from millstream.gateway.batches.records.batch_record import FOLDER, PARTS_KEPT_S
from millstream.gateway.context import GatewayContext
from millstream.gateway.files.store.hourly_sweep import sweep_hourly
from millstream.gateway.files.store.object_store import StoredObject
from millstream.gateway.redis.file_calls import Sweep

OLDEST_S = 33 * 86_400.0  # the longest window and some days: no batch is open for longer


class PartSweep:
    def __init__(self, gateway: GatewayContext, catalogue: BatchCatalogue) -> None:
        self._gateway, self._catalogue = gateway, catalogue

    async def run(self) -> Never:
        """Sweeps now and then, for ever."""
        await sweep_hourly(self._gateway.redis, Sweep.PARTS, self.sweep)

    async def sweep(self, age_s: float = PARTS_KEPT_S) -> int:
        """Deletes parts older than `age_s` that nobody needs; returns how many. Objects from before the
        server knew the store are left. Raises MillstreamError, StoreMismatch.
        """
        known_since_s = await self._gateway.marker.confirm()
        needed: dict[tuple[str, str], bool] = {}
        count = 0
        async for one in self._gateway.store.list(FOLDER):
            if not known_since_s <= one.modified_s < time.time() - age_s:
                continue
            if not await self._is_needed(one, needed):
                await self._gateway.store.delete(one.path)
                count += 1
        return count

    async def _is_needed(self, part: StoredObject, needed: dict[tuple[str, str], bool]) -> bool:
        """`needed`: what is known of batches already."""
        owner = owner_of_part(part.path)
        if owner is None:  # an older version wrote it, whose names say no tenant
            return part.modified_s > time.time() - OLDEST_S
        if owner not in needed:
            record = await self._catalogue.find(*owner)
            needed[owner] = record is not None and not record.is_over(time.time())
        return needed[owner]
