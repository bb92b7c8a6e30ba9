"""One subscription connection for a whole client: channels in, messages out to their sinks.

Subscriptions are counted per channel and sent in batches. The connection is made when the first channel is
asked for, and made anew with jittered backoff when it breaks; then each sink is told, because what was
published meanwhile is gone. The dispatcher never waits for a sink.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections import Counter
from collections.abc import Iterable, Iterator

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ConnectionError, RedisError

from millstream.client.mailbox import Sink
from millstream.wire.connection import Endpoint

log = logging.getLogger(__name__)

BATCH_CHANNELS = 500  # of one SUBSCRIBE command
ANSWER_S = 5.0  # for connecting, and for the server to take a command
PING_AFTER_S = 10.0  # of silence; two silences without an answer are a dead connection
BACKOFF_S = (0.05, 5.0)  # first and longest pause before connecting again


class Dispatcher:
    """Owned by one client. `subscription` registers a sink; `aclose` ends the connection and its task."""

    def __init__(self, endpoint: Endpoint, name: str, *, sharded: bool) -> None:
        self._endpoint = endpoint
        self._name = name
        self._subscribe, self._unsubscribe = (
            ("SSUBSCRIBE", "SUNSUBSCRIBE") if sharded else ("SUBSCRIBE", "UNSUBSCRIBE")
        )
        self._sinks: dict[str, list[Sink]] = {}  # what is wanted
        self._sent: set[str] = set()  # channels whose last command on this connection was a subscription
        self._unacknowledged: Counter[str] = Counter()  # subscriptions sent and not answered
        self._changed: set[str] = set()  # channels whose `_sinks` and `_sent` may differ
        self._work = asyncio.Event()
        self._pause_s = BACKOFF_S[0]
        self._task: asyncio.Task[None] | None = None
        self._closed = False

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
                self._note(channel)

    async def aclose(self) -> None:
        """End the connection, and wake all sinks, for which nothing comes any more."""
        self._closed = True
        task = self._task
        if task is not None:
            task.cancel()
            await asyncio.wait([task])  # unlike `await task`, passes on a cancellation of our own
            self._task = None
        for channel, sinks in self._sinks.items():
            for sink in sinks:
                sink.subscribed(channel)
        if task is not None and not task.cancelled():
            task.result()  # a fault in here is not to be hidden

    def _add(self, channel: str, sink: Sink) -> None:
        if self._task is None or self._task.done():
            if self._task is not None:
                self._task.result()  # a fault in here is not to be hidden
            self._task = asyncio.create_task(self._run(), name=self._name)
        self._sinks.setdefault(channel, []).append(sink)
        if channel in self._sent and not self._unacknowledged[channel]:
            sink.subscribed(channel)
        else:
            self._note(channel)

    def _note(self, channel: str) -> None:
        self._changed.add(channel)
        self._work.set()

    # --- the connection

    async def _run(self) -> None:
        while True:
            connection = self._endpoint.subscriber(self._name)
            try:
                async with asyncio.timeout(ANSWER_S):
                    await connection.connect()  # type: ignore[no-untyped-call]
                await self._serve(connection)
            except* (RedisError, OSError) as errors:
                if self._pause_s == BACKOFF_S[0]:  # once for each outage
                    log.warning("subscriptions on %s interrupted: %s", self._endpoint, errors.exceptions[0])
            finally:
                with contextlib.suppress(RedisError):
                    await connection.disconnect()
                self._forget()
            if self._closed:  # Python 3.11's TaskGroup forgets a cancellation that comes with an error
                return
            await asyncio.sleep(self._pause_s * random.uniform(0.5, 1.5))
            self._pause_s = min(2 * self._pause_s, BACKOFF_S[1])

    def _forget(self) -> None:
        self._sent.clear()
        self._unacknowledged.clear()
        self._changed = set(self._sinks)
        self._work.set()

    async def _serve(self, connection: AbstractConnection) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._write(connection))
            tasks.create_task(self._read(connection))

    async def _write(self, connection: AbstractConnection) -> None:
        while True:
            await self._work.wait()
            self._work.clear()
            changed, self._changed = self._changed, set()
            wanted = [channel for channel in changed if channel in self._sinks and channel not in self._sent]
            unwanted = [
                channel for channel in changed if channel in self._sent and channel not in self._sinks
            ]
            for batch in _batches(wanted):
                self._sent.update(batch)
                self._unacknowledged.update(batch)
                await _send(connection, self._subscribe, *batch)
            for batch in _batches(unwanted):
                left = [
                    channel for channel in batch if channel not in self._sinks
                ]  # not taken again meanwhile
                self._sent.difference_update(left)
                if left:
                    await _send(connection, self._unsubscribe, *left)

    async def _read(self, connection: AbstractConnection) -> None:
        pinged = False
        while True:
            reply = await connection.read_response(timeout=PING_AFTER_S, disconnect_on_error=False)
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
            for sink in self._sinks.get(channel, ()):
                sink.deliver(channel, reply[2])
        elif kind in (b"subscribe", b"ssubscribe"):
            self._acknowledge(name.decode())

    def _acknowledge(self, channel: str) -> None:
        self._pause_s = BACKOFF_S[0]
        self._unacknowledged[channel] -= 1
        if self._unacknowledged[channel] <= 0:  # else it was left and taken again: the last answer counts
            del self._unacknowledged[channel]
            for sink in self._sinks.get(channel, ()):
                sink.subscribed(channel)


async def _send(connection: AbstractConnection, *command: str) -> None:
    async with asyncio.timeout(ANSWER_S):
        await connection.send_command(*command, check_health=False)


def _batches(channels: list[str]) -> Iterator[list[str]]:
    for start in range(0, len(channels), BATCH_CHANNELS):
        yield channels[start : start + BATCH_CHANNELS]
