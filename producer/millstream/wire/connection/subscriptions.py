"""Subscriptions: channels in, messages out to one listener, over one connection, or one per node in a Cluster
with sharded pub/sub.

In a Cluster a channel lives with the keys of its hash tag. When its slot moves, the server ends the
subscription (or replies MOVED), and it is made again at the new node. Messages in between are lost, as with
any lost connection: the listener's `subscribed` is called, and it has to read what it missed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Protocol

from redis.exceptions import ClusterDownError, RedisError

from millstream.wire.connection.endpoint import Endpoint
from millstream.wire.connection.nodes import ServerNode
from millstream.wire.connection.pubsub_connection import PubSubConnection
from millstream.wire.connection.slots import channel_slot
from millstream.wire.timing import Backoff, jittered

log = logging.getLogger(__name__)

SETTLE_S = 0.02  # before channels are placed again: the nodes learn of a move one after the other
LONGEST_PAUSE_S = 2.0


class MessageListener(Protocol):
    """Receives published messages. Its methods must not wait."""

    def deliver(self, channel: str, payload: bytes) -> None:
        """Takes one published message."""

    def subscribed(self, channel: str) -> None:
        """Called for each acknowledged subscription, also after a reconnect: messages may be missing."""


class Subscriptions:
    """`run` serves until `close`. `subscribe` and `unsubscribe` may be called at any time, also before."""

    def __init__(self, endpoint: Endpoint, name: str, listener: MessageListener, *, sharded: bool) -> None:
        self.endpoint = endpoint
        self.name = name
        self.listener = listener
        self.sharded = sharded
        self.closed = False
        self._lines: dict[ServerNode | None, PubSubConnection] = {}
        self._line_of: dict[str, PubSubConnection] = {}  # each wanted channel is here or loose
        self._loose: set[str] = set()
        self._moving = False  # the nodes may still disagree about the owner of loose channels
        self._work = asyncio.Event()
        self._closing = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def by_node(self) -> bool:
        """True if each channel has its node. Plain pub/sub reaches all nodes of a Cluster."""
        return self.sharded and self.endpoint.topology is not None

    def subscribe(self, channel: str) -> None:
        if channel not in self._line_of:
            self._loose.add(channel)
            self._work.set()

    def unsubscribe(self, channel: str) -> None:
        self._loose.discard(channel)
        if (line := self._line_of.pop(channel, None)) is not None:
            line.discard(channel)

    def is_acknowledged(self, channel: str) -> bool:
        line = self._line_of.get(channel)
        return line is not None and line.is_acknowledged(channel)

    def place_again(self, channels: Iterable[str]) -> None:
        """Subscribes anew to channels that have lost their subscription."""
        for channel in channels:
            self._line_of.pop(channel, None)
            self._loose.add(channel)
        self._moving = True
        self._work.set()

    def close(self) -> None:
        self.closed = True
        self._closing.set()

    async def run(self) -> None:
        """Raises nothing but faults of this code."""
        async with asyncio.TaskGroup() as group:
            placing = group.create_task(self._place_all(group), name=self.name)
            try:
                await self._closing.wait()
            finally:
                self.close()
                for task in (placing, *self._tasks):
                    task.cancel()

    # --- channels and their connections

    async def _place_all(self, group: asyncio.TaskGroup) -> None:
        backoff = Backoff(SETTLE_S, LONGEST_PAUSE_S)
        while not self.closed:
            await self._work.wait()
            self._work.clear()
            if self._moving:
                self._moving = False
                await asyncio.sleep(jittered(SETTLE_S))
            try:
                await self._place(group)
            except (RedisError, OSError) as error:
                if not backoff.failures:  # once for each outage
                    log.warning("subscriptions on %s not placed: %s", self.endpoint, error)
                self._work.set()
                await backoff.pause()
            else:
                backoff.reset()

    async def _place(self, group: asyncio.TaskGroup) -> None:
        topology = self.endpoint.topology
        if topology is not None:
            await topology.refresh()
        for channel in list(self._loose):
            node = None
            if topology is not None:
                node = topology.known(channel_slot(channel) if self.sharded else None)
                if node is None:
                    continue  # nobody serves this slot; the others' channels do not wait for it
            if node not in self._lines:
                self._lines[node] = line = PubSubConnection(self, node)
                self._tasks.append(group.create_task(line.run(), name=self.name))
            self._loose.discard(channel)
            self._line_of[channel] = self._lines[node]
            self._lines[node].add(channel)
        if self._loose and topology is not None:
            topology.doubt()
            raise ClusterDownError(f"nobody serves the slots of {len(self._loose)} channels")
