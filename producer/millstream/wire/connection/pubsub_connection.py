"""One connection for subscriptions: tracks the wanted and the sent ones, and reconnects when it breaks.

Subscriptions are sent in batches, of one slot each in a Cluster. The owner receives every acknowledgement and
message, and gets back the channels that the server does not serve here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ConnectionError, MovedError, RedisError

from millstream.wire.connection.nodes import ServerNode
from millstream.wire.connection.slots import channel_slot
from millstream.wire.timing import Backoff

if TYPE_CHECKING:
    from millstream.wire.connection.subscriptions import Subscriptions

log = logging.getLogger("millstream.wire.connection.subscriptions")

BATCH_CHANNELS = 500  # of one SUBSCRIBE command
ANSWER_S = 5.0  # for connecting, and for the server to take a command
PING_AFTER_S = 10.0  # of silence; two silences without a reply are a dead connection
BACKOFF_S = (0.05, 5.0)  # first and longest pause before connecting again


class PubSubConnection:
    """A connection to `node` of a Cluster, or to the only server. Connects with its first channel."""

    def __init__(self, owner: Subscriptions, node: ServerNode | None) -> None:
        self._owner = owner
        self._node = node
        self._subscribe, self._unsubscribe = (
            ("SSUBSCRIBE", "SUNSUBSCRIBE") if owner.sharded else ("SUBSCRIBE", "UNSUBSCRIBE")
        )
        self._channels: set[str] = set()  # wanted channels
        self._sent: set[str] = set()  # channels whose last command on this connection was a subscription
        self._unacknowledged: Counter[str] = Counter()  # subscriptions sent and not acknowledged
        self._leaving: Counter[str] = Counter()  # unsubscriptions sent and not acknowledged
        self._changed: set[str] = set()  # channels whose `_channels` and `_sent` may differ
        self._work = asyncio.Event()
        self._backoff = Backoff(*BACKOFF_S)

    def add(self, channel: str) -> None:
        self._channels.add(channel)
        if self.is_acknowledged(channel):  # it was left, and the server has not been told yet
            self._owner.listener.subscribed(channel)
        else:
            self._note(channel)

    def discard(self, channel: str) -> None:
        self._channels.discard(channel)
        self._note(channel)

    def is_acknowledged(self, channel: str) -> bool:
        return channel in self._sent and not self._unacknowledged[channel]

    def _note(self, channel: str) -> None:
        self._changed.add(channel)
        self._work.set()

    async def run(self) -> None:
        """Serve until the owner is closed and cancels it."""
        while not self._owner.closed:
            await self._work.wait()
            connection = self._owner.endpoint.subscriber(self._owner.name, self._node)
            try:
                async with asyncio.timeout(ANSWER_S):
                    await connection.connect()  # type: ignore[no-untyped-call]
                if not self._owner.closed:
                    await self._serve(connection)
            except* (RedisError, OSError) as errors:
                if not self._backoff.failures and not self._owner.closed:  # once for each outage
                    log.warning(
                        "subscriptions on %s interrupted: %s",
                        self._node or self._owner.endpoint,
                        errors.exceptions[0],
                    )
            finally:
                with contextlib.suppress(RedisError):
                    await connection.disconnect(nowait=self._owner.closed)
                self._forget()
            if self._owner.closed:  # Python 3.11's TaskGroup forgets a cancellation that comes with an error
                return
            await self._backoff.pause()
            self._give_back(list(self._channels))
            if not self._channels:
                self._work.clear()

    def _forget(self) -> None:
        self._sent.clear()
        self._unacknowledged.clear()
        self._leaving.clear()
        self._changed = set(self._channels)
        if self._channels:
            self._work.set()

    def _give_back(self, channels: Iterable[str]) -> None:
        """In a Cluster: another node may serve them now. This one forgets them, wanted or not."""
        topology = self._owner.endpoint.topology
        if topology is None:
            return
        gone = list(channels)
        for channel in gone:
            self._sent.discard(channel)
            del self._unacknowledged[channel]
            del self._leaving[channel]
        given = [channel for channel in gone if channel in self._channels]
        self._channels.difference_update(given)
        if given:
            topology.doubt(self._node)
            self._owner.place_again(given)

    # --- the connection

    async def _serve(self, connection: AbstractConnection) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._write(connection))
            tasks.create_task(self._read(connection))

    async def _write(self, connection: AbstractConnection) -> None:
        while True:
            await self._work.wait()
            self._work.clear()
            changed, self._changed = self._changed, set()
            wanted = list((changed & self._channels) - self._sent)
            unwanted = list((changed & self._sent) - self._channels)
            for batch in self._batches(wanted):
                self._sent.update(batch)
                self._unacknowledged.update(batch)
                await _send(connection, self._subscribe, *batch)
            for batch in self._batches(unwanted):
                # not subscribed again meanwhile
                left = [channel for channel in batch if channel not in self._channels]
                self._sent.difference_update(left)
                self._leaving.update(left)
                if left:
                    await _send(connection, self._unsubscribe, *left)

    async def _read(self, connection: AbstractConnection) -> None:
        pinged = False
        while True:
            try:
                reply = await connection.read_response(timeout=PING_AFTER_S, disconnect_on_error=False)
            except MovedError as error:
                self._moved(error)
                continue
            if reply is not None:
                pinged = False
                self._dispatch(reply)
            elif pinged:
                raise ConnectionError(f"no answer for {2 * PING_AFTER_S:.0f} s")
            else:
                pinged = True
                await _send(connection, "PING")

    def _dispatch(self, reply: list[bytes]) -> None:
        kind, name = reply[0], reply[1]
        if kind in (b"message", b"smessage"):
            channel = name.decode()
            if channel in self._channels:
                self._owner.listener.deliver(channel, reply[2])
        elif kind in (b"subscribe", b"ssubscribe"):
            self._acknowledge(name.decode())
        elif kind in (b"unsubscribe", b"sunsubscribe") and name is not None:
            self._left(name.decode())

    def _acknowledge(self, channel: str) -> None:
        self._backoff.reset()
        self._unacknowledged[channel] -= 1
        # above 0 it was left and subscribed again: the last acknowledgement counts
        if self._unacknowledged[channel] <= 0:
            del self._unacknowledged[channel]
            if channel in self._channels:
                self._owner.listener.subscribed(channel)

    def _left(self, channel: str) -> None:
        """The server ended the subscription: we asked for it, or the channel's slot has left this node."""
        if not self._leaving[channel]:
            self._give_back([channel])
        elif self._leaving[channel] == 1:
            del self._leaving[channel]
        else:
            self._leaving[channel] -= 1

    def _moved(self, error: MovedError) -> None:
        """Handle a MOVED of a whole command: this node has no subscription of its slot any more."""
        topology = self._owner.endpoint.topology
        if topology is None or self._node is None:
            raise error
        known = {*self._channels, *self._sent, *self._unacknowledged, *self._leaving}
        self._give_back(name for name in known if channel_slot(name) == error.slot_id)
        topology.learn(error.slot_id, ServerNode(error.host or self._node.host, error.port))

    def _batches(self, channels: list[str]) -> Iterator[list[str]]:
        slots: defaultdict[int, list[str]] = defaultdict(list)
        for channel in channels:
            slots[channel_slot(channel) if self._owner.by_node else 0].append(channel)
        for group in slots.values():
            for start in range(0, len(group), BATCH_CHANNELS):
                yield group[start : start + BATCH_CHANNELS]


async def _send(connection: AbstractConnection, *command: str) -> None:
    async with asyncio.timeout(ANSWER_S):
        await connection.send_command(*command, check_health=False)
