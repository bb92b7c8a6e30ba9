"""Keeps the records of files in Redis: a hash for each file, which expires with it, and a sorted set for each
tenant, in the order of creation.
"""

from __future__ import annotations

from collections.abc import Sequence

from millstream.gateway.files.store.file_record import FileRecord
from millstream.gateway.redis.file_calls import OnceFile, add_file, remove_file
from millstream.gateway.redis.gateway_calls import OnceOutcome
from millstream.gateway.redis.gateway_redis import GatewayRedis
from millstream.gateway.redis.record_list import RecordList
from millstream.gateway.redis.tenant_keys import FILE_ID, TenantKeys


class FileCatalogue(RecordList[FileRecord]):
    """All methods raise Unavailable, AccessDenied, ProtocolError."""

    def __init__(self, redis: GatewayRedis) -> None:
        super().__init__(redis, FILE_ID, lambda keys: keys.files, TenantKeys.file, FileRecord.of)

    async def add(self, record: FileRecord, once: OnceFile | None = None) -> tuple[OnceOutcome, str]:
        """Adds a record, whose object must be there already; the same one may be added again. Returns the id
        of the file that has the Idempotency-Key, too: if that is another one, or another upload's, nothing
        was added.
        """
        fields = {
            "filename": record.filename,
            "purpose": record.purpose,
            "bytes": str(record.bytes),
            "created_s": str(record.created_s),
            "expires_s": str(record.expires_s or 0),
        }
        expires_ms = (record.expires_s or 0) * 1000
        keys = TenantKeys(record.tenant)
        return await self.redis.run(add_file(keys, record.id, fields, expires_ms=expires_ms, once=once))

    async def remove(self, tenant: str, id: str) -> bool:
        """Removes a record; True if it was there. Its object must be deleted afterwards."""
        return bool(FILE_ID.fullmatch(id)) and await self.redis.run(remove_file(TenantKeys(tenant), id))

    async def which_exist(self, owners: Sequence[tuple[str, str]]) -> set[tuple[str, str]]:
        """Returns those of the pairs of tenant and id that have a record."""
        if not owners:
            return set()
        with self.redis.reach():
            async with self.redis.client.pipeline(transaction=False) as pipeline:
                for tenant, id in owners:
                    pipeline.exists(TenantKeys(tenant).file(id))
                return {owner for owner, there in zip(owners, await pipeline.execute(), strict=True) if there}
