"""Listens to what concerns this worker at once: cancellations, and jobs given back. Only a shortcut: whoever
misses a message learns the same from the next renewal and the next scan.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Sequence

import structlog
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ConnectionError, RedisError

from millstream.wire.connection import Endpoint
from millstream.wire.keys import RELEASED, ShardKeys
from millstream.wire.messages import State
from millstream_worker.table import JobTable

_log = structlog.get_logger(__name__)
_PING_S = 15.0  # of silence, after which the server has to show that it is there
_LONGEST_PAUSE_S = 5.0
_CANCEL = b"cancel "


class Control:
    """`on_released` is called when jobs were given back somewhere."""

    def __init__(
        self,
        endpoint: Endpoint,
        name: str,
        shards: Sequence[ShardKeys],
        table: JobTable,
        on_released: Callable[[], None],
    ) -> None:
        self._endpoint = endpoint
        self._name = name
        self._shards = shards
        self._table = table
        self._on_released = on_released
        self._pause_s = 0.0
        self._stopping = asyncio.Event()
        self._connection: AbstractConnection | None = None

    async def run(self) -> None:
        """Listen until `stop`, through any number of lost connections."""
        while not self._stopping.is_set():
            self._connection = connection = self._endpoint.subscriber(self._name)
            try:
                await self._listen(connection)
            except (RedisError, OSError) as error:
                if not self._stopping.is_set():
                    _log.info("control channel lost", error=str(error))
            finally:
                await connection.disconnect(nowait=True)
            self._pause_s = min(2 * self._pause_s or 0.05, _LONGEST_PAUSE_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pause_s * random.uniform(0.5, 1.5)):
                    await self._stopping.wait()

    async def stop(self) -> None:
        self._stopping.set()
        if self._connection is not None:  # nothing else ends a read
            await self._connection.disconnect(nowait=True)

    async def _listen(self, connection: AbstractConnection) -> None:
        async with asyncio.timeout(_PING_S):
            await connection.connect()  # type: ignore[no-untyped-call]
        if self._stopping.is_set():  # `stop` found nothing to disconnect
            return
        command = "SSUBSCRIBE" if self._shards[0].sharded else "SUBSCRIBE"
        for shard in self._shards:
            await connection.send_command(command, shard.control)
        while True:
            reply = await connection.read_response(timeout=_PING_S)
            if reply is None:
                await connection.send_command("PING")
                reply = await connection.read_response(timeout=_PING_S)
                if reply is None:
                    raise ConnectionError(f"the server has not answered for {2 * _PING_S:g} s")
            if isinstance(reply, list) and reply[0] in (b"message", b"smessage"):
                self._obey(reply[2])
            self._pause_s = 0.0

    def _obey(self, message: bytes) -> None:
        if message == RELEASED.encode():
            self._on_released()
        elif message.startswith(_CANCEL):
            job = self._table.get(message.removeprefix(_CANCEL).decode(errors="replace"))
            if job is not None:
                self._table.conclude(job, State.CANCELLED)
