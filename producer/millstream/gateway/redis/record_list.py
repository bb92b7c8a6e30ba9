"""Reads a tenant's records of one kind: a hash for each, and a sorted set of their ids in the order of
creation, in which no two have the same score.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import structlog
from redis.exceptions import ResponseError

from millstream.errors import ProtocolError
from millstream.gateway.redis.gateway_redis import GatewayRedis
from millstream.gateway.redis.tenant_keys import TenantKeys
from millstream.wire.calls.scripts import texts

R = TypeVar("R")
_log = structlog.get_logger(__name__)
LOOKED_AT = 100  # of a page, until other requests have their turn


@dataclass(frozen=True, slots=True)
class RecordPage(Generic[R]):
    records: tuple[R, ...]
    has_more: bool


@dataclass(eq=False)
class RecordList(Generic[R]):
    """`id_form`: that of its ids. `read` makes a record of tenant, id and fields, or raises ProtocolError.
    All methods raise Unavailable, AccessDenied.
    """

    redis: GatewayRedis
    id_form: re.Pattern[str]
    list_of: Callable[[TenantKeys], str]
    key_of: Callable[[TenantKeys, str], str]
    read: Callable[[str, str, Mapping[str, str]], R]

    async def find(self, tenant: str, id: str) -> R | None:
        """Raises ProtocolError."""
        if not self.id_form.fullmatch(id):
            return None
        with self.redis.reach():
            stored = await self.redis.client.hgetall(self.key_of(TenantKeys(tenant), id))
        return self.read(tenant, id, texts(stored)) if stored else None

    async def page(
        self,
        tenant: str,
        *,
        after: str | None = None,
        limit: int,
        newest_first: bool = True,
        wanted: Callable[[R], bool] = lambda _: True,
    ) -> RecordPage[R] | None:
        """Returns those that come behind the record `after`; None if there is no such record."""
        name = self.list_of(TenantKeys(tenant))
        first, last = ("+inf", "-inf") if newest_first else ("-inf", "+inf")
        if after is not None:
            with self.redis.reach():
                score = await self.redis.client.zscore(name, after)
            if score is None:
                return None
            first = f"({int(score)}"
        found: list[R] = []
        while len(found) <= limit:
            with self.redis.reach():
                rows = await self.redis.client.zrange(
                    name, first, last, desc=newest_first, byscore=True, offset=0, num=LOOKED_AT,
                    withscores=True,
                )  # fmt: skip
            records = await self._records(tenant, [id.decode("utf-8", "replace") for id, _ in rows])
            found += filter(wanted, records)
            if len(rows) < LOOKED_AT:
                break
            first = f"({int(rows[-1][1])}"
        return RecordPage(tuple(found[:limit]), len(found) > limit)

    async def _records(self, tenant: str, ids: Sequence[str]) -> list[R]:
        """Those that have expired are taken off the list; damaged ones are left out."""
        if not ids:
            return []
        keys, redis = TenantKeys(tenant), self.redis.client
        with self.redis.reach():
            async with redis.pipeline(transaction=False) as pipeline:
                for id in ids:
                    pipeline.hgetall(self.key_of(keys, id))
                rows = await pipeline.execute(raise_on_error=False)
            for row in rows:
                if isinstance(row, ResponseError) and not str(row).startswith("WRONGTYPE"):
                    raise row
            if gone := [id for id, row in zip(ids, rows, strict=True) if row == {}]:
                await redis.zrem(self.list_of(keys), *gone)
        found = []
        for id, row in zip(ids, rows, strict=True):
            try:
                if row and not isinstance(row, ResponseError):  # a key of another type
                    found.append(self.read(tenant, id, texts(row)))
            except ProtocolError as error:
                _log.warning("record is damaged; lists leave it out", id=id, error=str(error))
        return found
