"""Customers: each orders one job after the other, and waits for what comes of it in its own way."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from chaos import orders
from chaos.ledger import Accepted, Entry
from millstream import AsyncClient, CancelOutcome, MillstreamError, NotFound

if TYPE_CHECKING:
    from chaos.arena import Arena
    from chaos.load import Load

BATCH = 8  # jobs of one `submit_many`
Way = Callable[["Customer", AsyncClient, Entry], Awaitable[None]]


class Customer:
    """Orders one job after the other. All its choices are its own: the same at the same seed, whatever the
    others do."""

    def __init__(self, load: Load, arena: Arena, number: int) -> None:
        self.random = random.Random(f"{arena.seed}/customer {number}")
        self._load = load
        self._arena = arena
        self._number = number
        self._orders = 0
        # A quarter of all ways takes several jobs at once; an order takes a while itself.
        self._pace = arena.setup.rate / arena.setup.customers
        ways, weights = zip(*WAYS, strict=True)
        self._ways: tuple[Way, ...] = ways
        self._weights: tuple[int, ...] = weights

    async def run(self) -> None:
        while not self._load.stopping:
            [way] = self.random.choices(self._ways, self._weights)
            async with self._client() as client:
                await way(self, client, self._order())
            await asyncio.sleep(self.random.expovariate(self._pace))

    def _order(self) -> Entry:
        self._orders += 1
        order = orders.draw(self.random, f"c{self._number}-{self._orders}", self._arena.setup.images)
        deadline = self.random.random() < 0.05
        if deadline:
            order = replace(order, fields={**order.fields, "deadline_s": self.random.uniform(0.05, 2.0)})
        return self._arena.ledger.open(order, deadline=deadline)

    @contextlib.asynccontextmanager
    async def _client(self) -> AsyncIterator[AsyncClient]:
        """Mostly a shared one, sometimes its own, which it closes."""
        if self.random.random() < 0.8:
            yield self._load.shared(self._number)
            return
        async with self._arena.client(stream_buffer=4) as client:
            yield client

    # --- ways to do it

    async def wait(self, client: AsyncClient, entry: Entry) -> None:
        if await self._load.submit(client, entry):
            await self._load.readers.wait(client, entry)

    async def poll(self, client: AsyncClient, entry: Entry) -> None:
        every_s = self.random.uniform(0.02, 0.2)
        if await self._load.submit(client, entry):
            await self._load.readers.poll(client, entry, every_s)

    async def _follow(self, client: AsyncClient, entry: Entry, kind: str, **how: Any) -> None:
        if await self._load.submit(client, entry):
            await self._load.readers.follow(client, entry, kind, **how)

    async def follow(self, client: AsyncClient, entry: Entry) -> None:
        await self._follow(client, entry, "follow")

    async def follow_slowly(self, client: AsyncClient, entry: Entry) -> None:
        await self._follow(client, entry, "slow", pause_s=self.random.uniform(0.0, 0.1))

    async def follow_in_parts(self, client: AsyncClient, entry: Entry) -> None:
        await self._follow(client, entry, "resume", part=self.random.randrange(1, 6))

    async def read_afterwards(self, client: AsyncClient, entry: Entry) -> None:
        if await self._load.submit(client, entry):
            await self._load.readers.wait(client, entry)
            await self._load.readers.follow(client, entry, "late")

    async def follow_with_others(self, client: AsyncClient, entry: Entry) -> None:
        readers, shared = self._load.readers, self._load.shared
        if await self._load.submit(client, entry):
            async with asyncio.TaskGroup() as group:
                group.create_task(readers.follow(client, entry, "follow"))
                group.create_task(readers.follow(shared(0), entry, "beside"))
                group.create_task(readers.wait(shared(1), entry))

    async def vanish_after_submit(self, client: AsyncClient, entry: Entry) -> None:
        """One submit, and whatever it answered is never read."""
        seconds = self.random.uniform(0.001, 0.05)
        async with self._arena.client() as own:
            entry.submits, entry.first_submit_s = 1, time.time()
            with contextlib.suppress(MillstreamError, TimeoutError):
                async with asyncio.timeout(seconds):
                    entry.answered(await own.submit(id=entry.order.own_id, **entry.order.fields))

    async def vanish_in_stream(self, client: AsyncClient, entry: Entry) -> None:
        events = self.random.randrange(0, 4)
        if await self._load.submit(client, entry):
            await self._load.readers.leave_after(client, entry, events)

    async def cancel(self, client: AsyncClient, entry: Entry) -> None:
        after_s = self.random.choice((0.0, self.random.uniform(0.0, 0.3)))
        if await self._load.submit(client, entry):
            async with asyncio.TaskGroup() as group:
                group.create_task(self._load.readers.follow(client, entry, "cancelled"))
                await asyncio.sleep(after_s)
                await self._cancel(client, entry)

    async def _cancel(self, client: AsyncClient, entry: Entry) -> None:
        entry.cancelled = True
        for _ in range(100):
            try:
                asked_s = time.time()
                match await client.cancel(entry.id):
                    case CancelOutcome.REQUESTED:
                        entry.cancel_requested_s = asked_s
                    case CancelOutcome.CANCELLED:
                        entry.cancelled_at_once = True
                return
            except NotFound:
                entry.troubles.append("cancel does not find it")
                return
            except MillstreamError:
                await asyncio.sleep(0.05)

    async def repeat(self, client: AsyncClient, entry: Entry) -> None:
        """The same submit several times at once, by several clients."""
        async with asyncio.TaskGroup() as group:
            for number in range(3):
                group.create_task(self._load.submit(self._load.shared(number), entry))
        await self._load.readers.wait(client, entry)

    async def submit_many(self, client: AsyncClient, entry: Entry) -> None:
        entries = [entry, *(self._order() for _ in range(BATCH - 1))]
        for one in entries:
            one.submits, one.first_submit_s = 1, time.time()
        jobs = [{"id": one.order.own_id, **one.order.fields} for one in entries]
        try:
            outcomes = await client.submit_many(jobs)
        except MillstreamError as error:
            outcomes = [error] * len(entries)
        for one, outcome in zip(entries, outcomes, strict=True):
            one.answered(outcome)
        for one in entries:
            if one.accepted is not Accepted.YES:
                await self._load.submit(client, one)
        await self._load.readers.wait_many(client, entries)


WAYS: list[tuple[Way, int]] = [
    (Customer.wait, 4),
    (Customer.poll, 3),
    (Customer.follow, 6),
    (Customer.follow_slowly, 2),
    (Customer.follow_in_parts, 3),
    (Customer.follow_with_others, 2),
    (Customer.read_afterwards, 2),
    (Customer.vanish_after_submit, 1),
    (Customer.vanish_in_stream, 2),
    (Customer.cancel, 3),
    (Customer.repeat, 1),
    (Customer.submit_many, 2),
]
