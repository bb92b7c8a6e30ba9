"""The shared subscription connection: counting, leaving and taking again, closing at any moment."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
import redis.asyncio
from support.servers.servers import Server

from millstream.client.streaming.dispatcher import Dispatcher
from millstream.client.streaming.mailbox import Mailbox
from millstream.wire.connection import Endpoint
from millstream.wire.connection.pubsub_connection import BATCH_CHANNELS


@pytest.fixture
async def dispatcher(server: Server) -> AsyncIterator[Dispatcher]:
    dispatcher = Dispatcher(Endpoint.of(server.url), "test-dispatcher", sharded=False)
    yield dispatcher
    await dispatcher.aclose()


async def test_more_channels_than_one_command_takes(
    dispatcher: Dispatcher, redis_client: redis.asyncio.Redis
) -> None:
    names = [f"channel {n}" for n in range(2 * BATCH_CHANNELS + 1)]
    boxes = {name: Mailbox(10) for name in names}
    with contextlib.ExitStack() as subscriptions:
        for name, box in boxes.items():
            subscriptions.enter_context(dispatcher.subscription([name], box))
        for box in boxes.values():
            assert await box.ready(20)
        for name in names:
            assert await redis_client.publish(name, name) == 1
        for name, box in boxes.items():
            assert await box.take(20) == ([name.encode()], False, False)


@pytest.mark.slow
async def test_as_many_channels_as_a_run_of_documents_has(
    dispatcher: Dispatcher, redis_client: redis.asyncio.Redis
) -> None:
    """At once, and again after a lost connection. Work that grows with their square would never be done."""
    names = [f"channel {n}" for n in range(60_000)]
    counts = Acknowledgements(len(names))
    with dispatcher.subscription(names, counts):
        await counts.complete.wait()
        counts.names.clear()
        counts.complete.clear()
        await redis_client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        await counts.complete.wait()


class Acknowledgements:
    """A sink that counts the channels that were subscribed to."""

    def __init__(self, all_of_them: int) -> None:
        self.names: set[str] = set()
        self.complete = asyncio.Event()
        self._all = all_of_them

    def deliver(self, channel: str, payload: bytes) -> None:
        raise AssertionError("nobody publishes")

    def subscribed(self, channel: str) -> None:
        self.names.add(channel)
        if len(self.names) == self._all:
            self.complete.set()


async def test_left_and_taken_again_at_once(
    dispatcher: Dispatcher, redis_client: redis.asyncio.Redis
) -> None:
    """What is published after an acknowledgement arrives, however often the channel was left before."""
    for number in range(50):
        box = Mailbox(10)
        with dispatcher.subscription(["c"], box):
            if number % 3 == 0:
                continue  # left before it was acknowledged
            assert await box.ready(20)
            assert await redis_client.publish("c", str(number)) == 1
            mail = await box.take(20)
            assert mail is not None
            assert mail.payloads == [str(number).encode()]


async def test_a_lost_connection_is_told_to_all(
    dispatcher: Dispatcher, redis_client: redis.asyncio.Redis
) -> None:
    boxes = [Mailbox(10), Mailbox(10)]
    with dispatcher.subscription(["a"], boxes[0]), dispatcher.subscription(["b"], boxes[1]):
        for box in boxes:
            assert await box.ready(20)
        await redis_client.client_kill_filter(_type="pubsub")
        for box in boxes:
            mail = await box.take(20)
            assert mail is not None
            assert mail.lost


async def test_an_acknowledgement_that_comes_late_is_told() -> None:
    box = Mailbox(3)
    assert not await box.ready(0)
    box.subscribed("c")
    mail = await box.take(0)
    assert mail is not None
    assert mail.lost


async def test_closing_at_any_moment(server: Server) -> None:
    for _ in range(30):
        dispatcher = Dispatcher(Endpoint.of(server.url), "test-dispatcher", sharded=False)
        box = Mailbox(10)
        with dispatcher.subscription([f"c{n}" for n in range(10)], box):
            for _ in range(random.randrange(30)):
                await asyncio.sleep(0)
            if random.random() < 0.5:
                await box.ready(20)
        async with asyncio.timeout(20):
            await dispatcher.aclose()


class Breaking:
    """A connection that breaks at the moment in which its reading is cancelled."""

    def __init__(self) -> None:
        self.reading = asyncio.Event()

    async def connect(self) -> None: ...
    async def disconnect(self, *, nowait: bool) -> None: ...
    async def send_command(self, *command: str, check_health: bool) -> None: ...

    async def read_response(self, **options: Any) -> None:
        self.reading.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ConnectionError("broken") from None


class OnlyConnection:
    topology = None

    def __init__(self, connection: Breaking | Slow) -> None:
        self.connection = connection

    def subscriber(self, name: str, node: None) -> Breaking | Slow:
        return self.connection


async def test_closing_while_the_connection_breaks() -> None:
    connection = Breaking()
    dispatcher = Dispatcher(OnlyConnection(connection), "test-dispatcher", sharded=False)  # type: ignore[arg-type]
    with dispatcher.subscription(["c"], Mailbox(10)):
        await connection.reading.wait()
        async with asyncio.timeout(5):
            await dispatcher.aclose()


class Slow:
    """A connection that acknowledges all it is sent; sending waits while `open` is not set."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, ...]] = []
        self.replies: asyncio.Queue[list[bytes]] = asyncio.Queue()
        self.open = asyncio.Event()
        self.sending = asyncio.Condition()

    async def is_sending(self, channel: str) -> None:
        async with self.sending:
            await self.sending.wait_for(lambda: channel in self.sent[-1])

    async def connect(self) -> None: ...
    async def disconnect(self, *, nowait: bool) -> None: ...

    async def send_command(self, name: str, *channels: str, check_health: bool) -> None:
        self.sent.append((name, *channels))
        for channel in channels:
            self.replies.put_nowait([name.lower().encode(), channel.encode(), b"1"])
        async with self.sending:
            self.sending.notify_all()
        await self.open.wait()

    async def read_response(self, **options: Any) -> list[bytes]:
        return await self.replies.get()


async def test_a_channel_that_is_taken_again_while_others_are_sent() -> None:
    connection = Slow()
    connection.open.set()
    dispatcher = Dispatcher(OnlyConnection(connection), "test-dispatcher", sharded=False)  # type: ignore[arg-type]
    with contextlib.ExitStack() as subscriptions:
        with dispatcher.subscription(["a"], box := Mailbox(10)):
            assert await box.ready(20)
            connection.open.clear()
            subscriptions.enter_context(dispatcher.subscription(["b"], Mailbox(10)))
            await connection.is_sending("b")
        subscriptions.enter_context(dispatcher.subscription(["c"], Mailbox(10)))
        await turns()
        connection.open.set()
        connection.open.clear()
        await connection.is_sending("c")  # next would be that nobody wants "a"
        subscriptions.enter_context(dispatcher.subscription(["a"], box := Mailbox(10)))
        connection.open.set()
        assert await box.ready(20)
        await turns()
        assert connection.sent == [("SUBSCRIBE", "a"), ("SUBSCRIBE", "b"), ("SUBSCRIBE", "c")]
    await dispatcher.aclose()


async def turns() -> None:
    """Let everything happen that waits for nothing from outside."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_closing_passes_on_a_cancellation(dispatcher: Dispatcher) -> None:
    box = Mailbox(10)
    with dispatcher.subscription(["c"], box):
        assert await box.ready(20)
        closing = asyncio.ensure_future(dispatcher.aclose())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        await dispatcher.aclose()
