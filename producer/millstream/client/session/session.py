"""Shared by the queues of one client: the command pool, the subscription connections, the server's clock."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator
from math import inf
from typing import TypeVar

from redis.asyncio import Redis

from millstream.client.session.lost_entry_probe import Looks
from millstream.client.session.options import ClientOptions
from millstream.client.streaming.dispatcher import Dispatcher
from millstream.client.streaming.mailbox import Mailroom
from millstream.errors import Unavailable
from millstream.wire.connection import Endpoint, Target, unavailable
from millstream.wire.state.queue_info import PubSub
from millstream.wire.timing import Backoff, ServerClock, within

T = TypeVar("T")
RETRIES = 3  # every command of a client is safe to repeat
WAITING = 16  # times as many connections for waiting submits: with everysec, each may wait for a second
CLOCK_S = 60.0  # validity of a measured clock offset
NEVER = float("-inf")
FIRST_PAUSE_S = 0.1  # before a failed read is repeated
LONGEST_PAUSE_S = 5.0


async def outlast(
    read: Callable[[], Awaitable[T]], for_s: float, told: Callable[[Unavailable], None] | None = None
) -> T:
    """Repeat a read until the server answers; raises Unavailable after the given time. One read is always
    tried. `told` is called with the first error, if the read is repeated.
    """
    give_up = time.monotonic() + for_s
    backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
    while True:
        try:
            return await read()
        except Unavailable as error:
            pause_s = backoff.next_s()
            if time.monotonic() + pause_s > give_up:
                raise
            if told is not None and backoff.failures == 1:
                told(error)
        await asyncio.sleep(pause_s)


class Session:
    """Connects when first used; `aclose` ends everything it opened."""

    def __init__(
        self,
        target: Target,
        options: ClientOptions,
        looks: Looks | None = None,
        clock: ServerClock | None = None,
    ) -> None:
        self.endpoint = Endpoint.of(target)
        self.options = options
        self.redis = self._pool(options.connections, options.timeout_s)
        self.mailroom = Mailroom()
        self.looks = looks or Looks()
        self._patient: Redis | None = None
        self._closed = False
        self._uses = 0  # uses of the server under way
        self._idle = asyncio.Event()
        self._dispatchers: dict[PubSub, Dispatcher] = {}
        self._clock = clock or ServerClock()

    @property
    def patient(self) -> Redis:
        """The pool for slow commands: submits that wait for their durability."""
        if self._patient is None:
            longest_s = self.options.timeout_s + self.options.durability_timeout_s
            self._patient = self._pool(WAITING * self.options.connections, longest_s)
        return self._patient

    def _pool(self, connections: int, timeout_s: float) -> Redis:
        return self.endpoint.commands(
            self.options.name, connections=connections, timeout_s=timeout_s, retries=RETRIES
        )

    def dispatcher(self, pubsub: PubSub) -> Dispatcher:
        self._check_open()  # a closed client's dispatcher would connect again, and nobody would end it
        if pubsub not in self._dispatchers:
            name = f"{self.options.name}:{pubsub}"
            self._dispatchers[pubsub] = Dispatcher(self.endpoint, name, sharded=pubsub is PubSub.SHARDED)
        return self._dispatchers[pubsub]

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("this client is closed")

    @contextlib.contextmanager
    def reach(self) -> Iterator[None]:
        """Wraps every use of the server: converts its errors to Unavailable."""
        self._check_open()
        self._uses += 1
        try:
            with unavailable(self.endpoint):
                yield
        finally:
            self._uses -= 1
            if not self._uses:
                self._idle.set()

    async def now_ms(self) -> int:
        """The server's clock, in Unix milliseconds; read once a minute."""
        if self._clock.age_s > CLOCK_S:
            try:
                with self.reach():
                    await self._clock.sync(self.redis)
            except Unavailable:
                if self._clock.age_s == inf:
                    raise
        return self._clock.now_ms()

    async def outlast(self, read: Callable[[], Awaitable[T]], give_up_s: float = float("inf")) -> T:
        """Repeat a read until the server answers, for `reconnect_s` and at most until `give_up_s` of the
        monotonic clock. Raises Unavailable.
        """
        return await outlast(read, min(self.options.reconnect_s, give_up_s - time.monotonic()))

    async def aclose(self) -> None:
        """Close all connections, even where it is cancelled. Running streams and waits wake up and find the
        session closed.

        Commands under way may end first; after `timeout_s` they lose their connections.
        """
        self._closed = True
        async with contextlib.AsyncExitStack() as exits:  # the last one pushed is called first
            for redis in (self.redis, self._patient):
                if redis is not None:
                    exits.push_async_callback(redis.aclose)
            exits.push_async_callback(self._last_uses)
            for dispatcher in self._dispatchers.values():
                exits.push_async_callback(dispatcher.aclose)

    async def _last_uses(self) -> None:
        if self._uses:
            self._idle.clear()
            await within(self._idle, self.options.timeout_s)
