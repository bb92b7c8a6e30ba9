"""How customers learn what became of a job: streams followed whole, in parts, slowly or not to the end; waits
and polls. What they see goes to the ledger; nothing is judged here.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from chaos.ledger import Ended, Entry, Ledger, Reading
from millstream import (
    AsyncClient,
    EndEvent,
    Event,
    JobCancelled,
    JobError,
    JobExpired,
    JobFailed,
    MillstreamError,
    NotReady,
    Result,
    RewindEvent,
    Unavailable,
)

WAIT_S = 600.0  # longer than any run: a wait that nobody ends is seen as such
AGAIN_S = 0.2


class Readers:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def follow(
        self, client: AsyncClient, entry: Entry, kind: str, *, part: int | None = None, pause_s: float = 0.0
    ) -> None:
        """To the end. `part`: events after which the reader goes away, and comes back with its cursor."""
        reading = Reading(kind)
        entry.readings.append(reading)
        while not reading.over:
            try:
                await self._read(client, entry, reading, part, pause_s)
            except Unavailable:
                await asyncio.sleep(AGAIN_S)
            except MillstreamError as error:
                reading.error = repr(error)

    async def _read(
        self, client: AsyncClient, entry: Entry, reading: Reading, part: int | None, pause_s: float
    ) -> None:
        async with contextlib.aclosing(client.stream(entry.id, reading.cursor)) as events:
            taken = 0
            async for event in events:
                self._take(reading, event)
                taken += 1
                if part is not None and taken >= part and not reading.over:
                    break
                if pause_s:
                    await asyncio.sleep(pause_s)

    async def leave_after(self, client: AsyncClient, entry: Entry, count: int) -> None:
        """Read so many events, then never again."""
        reading = Reading("leaver")
        entry.readings.append(reading)
        try:
            async with contextlib.aclosing(client.stream(entry.id)) as events:
                for _ in range(count):
                    self._take(reading, await anext(events))
        except (StopAsyncIteration, Unavailable):
            pass
        except MillstreamError as error:
            reading.error = repr(error)
        finally:
            reading.left = True

    def _take(self, reading: Reading, event: Event) -> None:
        reading.cursor = event.cursor
        reading.transcript.add(event)
        if isinstance(event, RewindEvent):
            reading.rewinds += 1
        elif isinstance(event, EndEvent):
            reading.state = event.state
        self._ledger.progressed()

    # --- waits

    async def wait(self, client: AsyncClient, entry: Entry) -> None:
        await self.wait_many(client, [entry])

    async def wait_many(self, client: AsyncClient, entries: Sequence[Entry]) -> None:
        left = {entry.id: entry for entry in entries}
        for entry in entries:
            entry.waiting += 1
        while left:
            try:
                async for job_id, outcome in client.as_completed(left, WAIT_S):
                    self._told(left.pop(job_id), outcome)
            except Unavailable:
                await asyncio.sleep(AGAIN_S)

    async def poll(self, client: AsyncClient, entry: Entry, every_s: float) -> None:
        """`status` and `result` by turns, until there is one."""
        entry.waiting += 1
        outcome: Result | JobError
        while True:
            try:
                await client.status(entry.id)
                outcome = await client.result(entry.id)
                break
            except (NotReady, Unavailable):
                await asyncio.sleep(every_s)
            except JobError as error:
                outcome = error
                break
        self._told(entry, outcome)

    def _told(self, entry: Entry, outcome: Result | JobError) -> None:
        entry.waiting -= 1
        match outcome:
            case Result():
                entry.told.append(Ended.of(outcome))
            case JobFailed() | JobCancelled() | JobExpired():
                entry.told.append(Ended.of(outcome.result))
            case _:
                entry.wait_error = repr(outcome)
        self._ledger.progressed()
