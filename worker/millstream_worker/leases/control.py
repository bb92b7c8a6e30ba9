"""Listens on the control channels: cancellations, released jobs, and checks of silent jobs. The next renewal
or scan makes up for a missed message; readers ask again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from millstream.wire.connection import Endpoint, Subscriptions
from millstream.wire.keys import LOOK, RELEASED, ShardKeys
from millstream_worker.jobs.table import JobTable

_CANCEL = b"cancel "
_LOOK = f"{LOOK} ".encode()


class Control:
    """`on_released` is called when any worker released jobs, `on_look` with the channel and the id of a job
    that a reader asks about.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        name: str,
        shards: Sequence[ShardKeys],
        table: JobTable,
        on_released: Callable[[], None],
        on_look: Callable[[str, str], None],
    ) -> None:
        self._table = table
        self._on_released = on_released
        self._on_look = on_look
        self._subscriptions = Subscriptions(endpoint, name, self, sharded=shards[0].sharded)
        for shard in shards:
            self._subscriptions.subscribe(shard.control)

    async def run(self) -> None:
        """Listen until `stop`, through any number of lost connections."""
        await self._subscriptions.run()

    async def stop(self) -> None:
        self._subscriptions.close()

    # --- called by the subscriptions

    def deliver(self, channel: str, message: bytes) -> None:
        if message == RELEASED.encode():
            self._on_released()
        elif message.startswith(_CANCEL):
            self._table.cancel(message.removeprefix(_CANCEL).decode(errors="replace"))
        elif message.startswith(_LOOK):
            self._on_look(channel, message.removeprefix(_LOOK).decode(errors="replace"))

    def subscribed(self, channel: str) -> None:
        """The next renewal and scan make up for earlier messages."""
