"""One client's subscriptions: any number of sinks of a channel share one subscription.

Messages published during a reconnect, or while a slot of a Cluster moves, are lost: `subscribed` is then
called on each sink. The dispatcher never waits for a sink.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator

from millstream.wire.connection import Endpoint, MessageListener, Subscriptions


class Dispatcher:
    """Owned by one client. `subscription` registers a sink; `aclose` ends the connections and their task."""

    def __init__(self, endpoint: Endpoint, name: str, *, sharded: bool) -> None:
        self._name = name
        self._subscriptions = Subscriptions(endpoint, name, self, sharded=sharded)
        self._sinks: dict[str, list[MessageListener]] = {}
        self._task: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def subscription(self, channels: Iterable[str], sink: MessageListener) -> Iterator[None]:
        """Deliver the channels' messages to `sink` while the block runs."""
        names = list(channels)
        for channel in names:
            self._add(channel, sink)
        try:
            yield
        finally:
            for channel in names:
                self.drop(channel, sink)

    def drop(self, channel: str, sink: MessageListener) -> None:
        """End one channel of a subscription early; a no-op if it has ended already."""
        sinks = self._sinks.get(channel, [])
        if sink in sinks:
            sinks.remove(sink)
            if not sinks:
                del self._sinks[channel]
                self._subscriptions.unsubscribe(channel)

    async def aclose(self) -> None:
        """End the connections, and wake all sinks, which receive nothing more."""
        self._subscriptions.close()
        task = self._task
        if task is not None:
            await asyncio.wait([task])  # unlike `await task`, passes on a cancellation of our own
            self._task = None
        for channel, sinks in self._sinks.items():
            for sink in sinks:
                sink.subscribed(channel)
        if task is not None:
            task.result()  # raise a fault of its code

    def _add(self, channel: str, sink: MessageListener) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._subscriptions.run(), name=self._name)
        elif self._task.done():
            self._task.result()  # raise a fault of its code
        self._sinks.setdefault(channel, []).append(sink)
        if self._subscriptions.is_acknowledged(channel):
            sink.subscribed(channel)
        else:
            self._subscriptions.subscribe(channel)

    # --- called by the subscriptions

    def deliver(self, channel: str, payload: bytes) -> None:
        for sink in self._sinks.get(channel, ()):
            sink.deliver(channel, payload)

    def subscribed(self, channel: str) -> None:
        for sink in self._sinks.get(channel, ()):
            sink.subscribed(channel)
