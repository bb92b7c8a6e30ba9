"""Deletes objects that no file's record names: of uploads that were cut off, and of files that have
expired.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Never

from millstream.gateway.files.store.file_catalogue import FileCatalogue
from millstream.gateway.files.store.file_record import FOLDER, owner_of
from millstream.gateway.files.store.hourly_sweep import sweep_hourly
from millstream.gateway.files.store.object_store import ObjectStore, StoredObject
from millstream.gateway.files.store.store_marker import StoreMarker
from millstream.gateway.redis.file_calls import Sweep
from millstream.gateway.redis.gateway_redis import GatewayRedis

AGE_S = 86_400.0  # a younger one may still get its record
_TOGETHER = 500


@dataclass(slots=True, eq=False)
class Orphans:
    """One gateway sweeps at a time: the one that has claimed this hour."""

    redis: GatewayRedis
    store: ObjectStore
    files: FileCatalogue
    marker: StoreMarker

    async def run(self) -> Never:
        """Sweep now and then, for ever."""
        await sweep_hourly(self.redis, Sweep.FILES, self.sweep)

    async def sweep(self, age_s: float = AGE_S) -> int:
        """Deletes orphans; returns how many. Objects from before the server knew the store are left: a server
        that has lost its memory is no reason to delete files. Raises MillstreamError, StoreMismatch.
        """
        known_since_s = await self.marker.confirm()
        count = 0
        batch: list[StoredObject] = []
        async for one in self.store.list(FOLDER):
            if known_since_s <= one.modified_s < time.time() - age_s:
                batch.append(one)
            if len(batch) == _TOGETHER:
                count += await self._delete(batch)
                batch = []
        return count + await self._delete(batch) + await self.store.delete_unfinished(age_s)

    async def _delete(self, found: Sequence[StoredObject]) -> int:
        owners = {one.path: owner for one in found if (owner := owner_of(one.path)) is not None}
        kept = await self.files.which_exist(list(owners.values()))
        count = 0
        for path, (tenant, id) in owners.items():
            if (tenant, id) not in kept:
                await self.files.remove(tenant, id)  # its place among the tenant's files
                await self.store.delete(path)
                count += 1
        return count
