"""One client's subscriptions: many sinks of a channel are one subscription of it.

What is published while a connection is made anew, or while a slot of a Cluster moves, is gone: then each sink
is told. The dispatcher never waits for a sink.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator

from millstream.client.streaming.mailbox import Sink
from millstream.wire.connection import Endpoint, Subscriptions


class Dispatcher:
    """Owned by one client. `subscription` registers a sink; `aclose` ends the connections and their task."""

    def __init__(self, endpoint: Endpoint, name: str, *, sharded: bool) -> None:
        self._name = name
        self._subscriptions = Subscriptions(endpoint, name, self, sharded=sharded)
        self._sinks: dict[str, list[Sink]] = {}
        self._task: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def subscription(self, channels: Iterable[str], sink: Sink) -> Iterator[None]:
        """Hand the channels' messages to `sink` while the block runs."""
        names = list(channels)
        for channel in names:
            self._add(channel, sink)
        try:
            yield
        finally:
            for channel in names:
                self.drop(channel, sink)

    def drop(self, channel: str, sink: Sink) -> None:
        """End one channel of a subscription early; nothing where it has ended already."""
        sinks = self._sinks.get(channel, [])
        if sink in sinks:
            sinks.remove(sink)
            if not sinks:
                del self._sinks[channel]
                self._subscriptions.unsubscribe(channel)

    async def aclose(self) -> None:
        """End the connections, and wake all sinks, for which nothing comes any more."""
        self._subscriptions.close()
        task = self._task
        if task is not None:
            await asyncio.wait([task])  # unlike `await task`, passes on a cancellation of our own
            self._task = None
        for channel, sinks in self._sinks.items():
            for sink in sinks:
                sink.subscribed(channel)
        if task is not None:
            task.result()  # a fault in there is not to be hidden

    def _add(self, channel: str, sink: Sink) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._subscriptions.run(), name=self._name)
        elif self._task.done():
            self._task.result()  # a fault in there is not to be hidden
        self._sinks.setdefault(channel, []).append(sink)
        if self._subscriptions.is_acknowledged(channel):
            sink.subscribed(channel)
        else:
            self._subscriptions.subscribe(channel)

    # --- what the subscriptions tell

    def deliver(self, channel: str, payload: bytes) -> None:
        for sink in self._sinks.get(channel, ()):
            sink.deliver(channel, payload)

    def subscribed(self, channel: str) -> None:
        for sink in self._sinks.get(channel, ()):
            sink.subscribed(channel)
