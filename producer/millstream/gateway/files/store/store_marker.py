"""Checks that all gateways of a server have one store of files: its id stands in the server and, as an
object, in the store.
"""

from __future__ import annotations

import time
from uuid import uuid4

from millstream.errors import Unavailable
from millstream.gateway.files.store.object_store import MissingObject, ObjectStore
from millstream.gateway.redis.file_calls import register_store
from millstream.gateway.redis.gateway_redis import GatewayRedis
from millstream.logs.failure_log import FailureLog
from millstream.openai.api_error import RETRY_S, ApiError, retry_after

MARKER = "millstream-store"
FRESH_S = 60.0


class StoreMismatch(ApiError):
    """The store of this gateway is another one than that of the other gateways. The log has it."""

    def __init__(self) -> None:
        message = (
            "this gateway's store of files is not the one that its server knows; its operator must give all "
            f"gateways the same --files-url, whose store has the object {MARKER} (see ops/pages/gateway.md)"
        )
        super().__init__(503, message, "store_mismatch", headers=retry_after(RETRY_S))


TOLD = (Unavailable, StoreMismatch)  # the server's, the store's and its mark's: who meets one logs nothing


class StoreMarker:
    def __init__(self, redis: GatewayRedis, store: ObjectStore) -> None:
        self._redis = redis
        self._store = store
        self._mismatch = FailureLog("files cannot be used", "files can be used again")
        self._known_since_s = 0.0
        self._confirmed_s = float("-inf")  # of the monotonic clock

    async def confirm(self, *, now: bool = False) -> float:
        """Returns since when the server knows this store, in Unix seconds. Looks again once a minute, or
        `now`. Raises StoreMismatch, Unavailable, AccessDenied.
        """
        if now or time.monotonic() - self._confirmed_s > FRESH_S:
            id = await self._marked()
            known, since_ms = await self._redis.run(register_store(id))
            if id is None or known != id:
                error = StoreMismatch()
                self._mismatch.failed(error=str(error))
                raise error
            self._mismatch.worked()
            self._store.expect(MARKER)
            self._known_since_s = since_ms / 1000
            self._confirmed_s = time.monotonic()
        return self._known_since_s

    async def _marked(self) -> str | None:
        """Returns the store's id; a store gets one if the server knows none yet."""
        id = await self._read()
        if id is not None:
            return id
        known, _ = await self._redis.run(register_store(None))
        if known:
            return await self._read()  # another gateway may just have marked it
        await self._store.create(MARKER, uuid4().hex.encode())
        return await self._read()

    async def _read(self) -> str | None:
        try:
            return b"".join([chunk async for chunk in self._store.read(MARKER)]).decode()
        except MissingObject:
            return None
