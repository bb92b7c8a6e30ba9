"""The load of an arena: its customers, the clients that they share, and what faults submit beside them."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Self

from chaos.customers import Customer
from chaos.ledger import Entry, Order
from chaos.readers import Readers
from millstream import AsyncClient, MillstreamError

if TYPE_CHECKING:
    from chaos.arena import Arena

PATIENCE_S = 90.0  # of a customer whose submit is not answered


class Load:
    """Customers run from entering until `stop`."""

    def __init__(self, arena: Arena) -> None:
        self.readers = Readers(arena.ledger)
        self._arena = arena
        self.stopping = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._shared: list[AsyncClient] = []

    async def __aenter__(self) -> Self:
        self._shared = [self._arena.client() for _ in range(3)]
        for number in range(self._arena.setup.customers):
            self.spawn(Customer(self, self._arena, number).run())
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Whoever still waits is sent away, and all clients are closed."""
        self.stop()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=10)
        while self._shared:
            await self._shared.pop().aclose()

    def stop(self) -> None:
        """No new orders; what was ordered is waited for."""
        self.stopping = True

    def spawn(self, work: Any) -> None:
        """A customer, or what it left running. What it raises is a violation, and ends nothing else."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    async def over(self, wait_s: float) -> bool:
        """Whether all customers have what they waited for."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=wait_s)
        return not self._tasks

    async def place(self, order: Order, **expected: Any) -> Entry:
        """Submit one more job than the customers do (a fault's poison): to the ledger, and until it is known
        whether it was accepted."""
        entry = self._arena.ledger.open(order, **expected)
        await self.submit(self.shared(0), entry)
        return entry

    def shared(self, number: int) -> AsyncClient:
        return self._shared[number % len(self._shared)]

    async def submit(self, client: AsyncClient, entry: Entry) -> bool:
        """Again and again under the same id, as producers do. Whether it is known to be accepted."""
        give_up = time.monotonic() + PATIENCE_S
        entry.first_submit_s = entry.first_submit_s or time.time()
        while time.monotonic() < give_up:
            entry.submits += 1
            try:
                entry.answered(await client.submit(id=entry.order.own_id, **entry.order.fields))
                return True
            except MillstreamError as error:
                entry.answered(error)
            if self.stopping and entry.submits > 20:
                break
            await asyncio.sleep(0.1)
        return False

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._arena.ledger.note(f"a customer was told {error!r}")
