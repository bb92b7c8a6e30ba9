"""Keeps the records of files in Redis: a hash for each file, which expires with it, and a sorted set for each
tenant, in the order of creation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from millstream.errors import ProtocolError
from millstream.gateway.files.store.file_record import FileRecord
from millstream.gateway.redis.file_calls import OnceFile, add_file, remove_file
from millstream.gateway.redis.gateway_calls import OnceOutcome
from millstream.gateway.redis.gateway_redis import GatewayRedis
from millstream.gateway.redis.tenant_keys import FILE_ID, TenantKeys
from millstream.wire.calls.scripts import texts

LOOKED_AT = 100  # of a page, until other requests have their turn


@dataclass(frozen=True, slots=True)
class FilePage:
    records: tuple[FileRecord, ...]
    has_more: bool


class FileCatalogue:
    """All methods raise Unavailable, AccessDenied, ProtocolError."""

    def __init__(self, redis: GatewayRedis) -> None:
        self._redis = redis

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
        return await self._redis.run(add_file(keys, record.id, fields, expires_ms=expires_ms, once=once))

    async def find(self, tenant: str, id: str) -> FileRecord | None:
        if not FILE_ID.fullmatch(id):
            return None
        with self._redis.reach():
            stored = await self._redis.client.hgetall(TenantKeys(tenant).file(id))
        return _record(tenant, id, stored) if stored else None

    async def page(
        self,
        tenant: str,
        *,
        after: str | None = None,
        limit: int,
        newest_first: bool = True,
        purpose: str | None = None,
    ) -> FilePage | None:
        """Returns the files that come after the file `after`; None if there is no such file."""
        score = None if after is None else await self._score(tenant, after)
        if after is not None and score is None:
            return None
        found: list[FileRecord] = []
        while len(found) <= limit:
            rows = await self._behind(tenant, score, newest_first)
            records = await self._records(tenant, [id for id, _ in rows])
            found += [one for one in records if purpose in (None, one.purpose)]
            if len(rows) < LOOKED_AT:
                break
            score = rows[-1][1]
        return FilePage(tuple(found[:limit]), len(found) > limit)

    async def remove(self, tenant: str, id: str) -> bool:
        """Removes a record; True if it was there. Its object must be deleted afterwards."""
        return bool(FILE_ID.fullmatch(id)) and await self._redis.run(remove_file(TenantKeys(tenant), id))

    async def which_exist(self, owners: Sequence[tuple[str, str]]) -> set[tuple[str, str]]:
        """Returns those of the pairs of tenant and id that have a record."""
        if not owners:
            return set()
        with self._redis.reach():
            async with self._redis.client.pipeline(transaction=False) as pipeline:
                for tenant, id in owners:
                    pipeline.exists(TenantKeys(tenant).file(id))
                return {owner for owner, there in zip(owners, await pipeline.execute(), strict=True) if there}

    async def _score(self, tenant: str, id: str) -> int | None:
        with self._redis.reach():
            score = await self._redis.client.zscore(TenantKeys(tenant).files, id)
        return None if score is None else int(score)

    async def _behind(self, tenant: str, score: int | None, newest_first: bool) -> list[tuple[str, int]]:
        """Returns the next ids with their scores, which no two files of a tenant share."""
        first, last = ("+inf", "-inf") if newest_first else ("-inf", "+inf")
        with self._redis.reach():
            rows = await self._redis.client.zrange(
                TenantKeys(tenant).files,
                first if score is None else f"({score}",
                last,
                desc=newest_first,
                byscore=True,
                offset=0,
                num=LOOKED_AT,
                withscores=True,
            )
        return [(id.decode(), int(score)) for id, score in rows]

    async def _records(self, tenant: str, ids: Sequence[str]) -> list[FileRecord]:
        """Reads the records of these files, except of those that have expired."""
        if not ids:
            return []
        keys = TenantKeys(tenant)
        with self._redis.reach():
            async with self._redis.client.pipeline(transaction=False) as pipeline:
                for id in ids:
                    pipeline.hgetall(keys.file(id))
                rows = await pipeline.execute()
        return [_record(tenant, id, row) for id, row in zip(ids, rows, strict=True) if row]


def _record(tenant: str, id: str, stored: Any) -> FileRecord:
    fields = texts(stored)
    try:
        numbers = [int(fields[name]) for name in ("bytes", "created_s", "expires_s")]
        return FileRecord(
            id, tenant, fields["filename"], fields["purpose"], numbers[0], numbers[1], numbers[2] or None
        )
    except (KeyError, ValueError) as error:
        raise ProtocolError(f"the record of {id} is damaged: {error!s:.100}") from None
