"""Listens to what concerns this worker at once: cancellations, and jobs given back. Only a shortcut: whoever
misses a message learns the same from the next renewal and the next scan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from millstream.wire.connection import Endpoint, Subscriptions
from millstream.wire.keys import RELEASED, ShardKeys
from millstream_worker.table import JobTable

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
        self._table = table
        self._on_released = on_released
        self._subscriptions = Subscriptions(endpoint, name, self, sharded=shards[0].sharded)
        for shard in shards:
            self._subscriptions.subscribe(shard.control)

    async def run(self) -> None:
        """Listen until `stop`, through any number of lost connections."""
        await self._subscriptions.run()

    async def stop(self) -> None:
        self._subscriptions.close()

    # --- what the subscriptions tell

    def deliver(self, channel: str, message: bytes) -> None:
        if message == RELEASED.encode():
            self._on_released()
        elif message.startswith(_CANCEL):
            self._table.cancel(message.removeprefix(_CANCEL).decode(errors="replace"))

    def subscribed(self, channel: str) -> None:
        """What was said before is learnt from the next renewal and the next scan."""
