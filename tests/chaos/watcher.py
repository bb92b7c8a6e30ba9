"""Looks at every job's hash all the time, past all proxies: who had it at which attempt, and whether what has
ended stays as it ended.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Self

from redis.exceptions import RedisError

from chaos.ledger import Entry
from millstream import State
from millstream.wire.keys import shard_of

if TYPE_CHECKING:
    from chaos.arena import Arena

EVERY_S = 0.1
ENDED_AGAIN = 50  # jobs that have ended, looked at again each time
PAGE = 500
FIELDS = ("state", "attempt", "owner", "finished_ms", "result")


@dataclass(slots=True)
class Turn:
    """One attempt of a job, as far as it was seen. Wall clock."""

    owner: str
    first_s: float
    last_s: float


@dataclass(slots=True)
class Sight:
    turns: dict[int, Turn] = field(default_factory=dict)  # by attempt
    ended: tuple[bytes | None, ...] | None = None  # state, finished_ms, result
    ended_s: float = 0.0
    changed: str = ""  # a terminal state, and to what: for the checks to say whether it may

    @property
    def state(self) -> State | None:
        return None if self.ended is None or self.ended[0] is None else State(self.ended[0].decode())

    @property
    def finished_s(self) -> float | None:
        """By the server's clock."""
        return None if self.ended is None or self.ended[1] is None else int(self.ended[1]) / 1000


class Watcher:
    """Runs while it is entered. `late_s` has (when, how much) of every delay of this process' own loop that
    makes what it measures worthless."""

    def __init__(self, arena: Arena) -> None:
        self.sights: dict[str, Sight] = {}
        self.late: list[tuple[float, float]] = []
        self._arena = arena
        self._open: dict[str, Entry] = {}  # submitted, and not seen to have ended
        self._known = 0  # entries of the ledger that were taken up
        self._random = random.Random(f"{arena.seed}/watcher")
        self._task: asyncio.Task[None] | None = None
        self._looking = asyncio.Lock()  # what is read first is noted first

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run(), name="watcher")
        return self

    async def __aexit__(self, *error: Any) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait([self._task])

    @property
    def open(self) -> list[Entry]:
        """Jobs that exist, or may exist, and have not ended."""
        return list(self._open.values())

    async def look(self) -> None:
        """Once at all that is open, and at some that have ended. Raises redis-py's errors."""
        entries = self._arena.ledger.entries
        for entry in islice(entries.values(), self._known, None):
            self._open[entry.id] = entry
        self._known = len(entries)
        ended = [job_id for job_id, sight in self.sights.items() if sight.ended is not None]
        again = self._random.sample(ended, min(ENDED_AGAIN, len(ended)))
        await self._look_at([*self._open, *again])

    async def look_at_all(self) -> None:
        await self._look_at(list(self._arena.ledger.entries))

    async def _run(self) -> None:
        due = time.monotonic()
        while True:
            due += EVERY_S
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            late_s = time.monotonic() - due
            if late_s > EVERY_S:
                self.late.append((time.time(), late_s))
                due = time.monotonic()
            try:
                await self.look()
            except (RedisError, OSError):
                due = time.monotonic()  # the server is away: there is nothing to see

    async def _look_at(self, job_ids: list[str]) -> None:
        for start in range(0, len(job_ids), PAGE):
            async with self._looking:
                await self._look_at_page(job_ids[start : start + PAGE])

    async def _look_at_page(self, page: list[str]) -> None:
        async with self._arena.admin.pipeline(transaction=False) as pipeline:
            for job_id in page:
                keys = self._arena.shards[shard_of(job_id)]
                pipeline.hmget(keys.job(job_id), FIELDS)
            rows = await pipeline.execute()
        for job_id, row in zip(page, rows, strict=True):
            self._see(job_id, row)

    def _see(self, job_id: str, row: list[bytes | None]) -> None:
        state, attempt, owner, finished_ms, result = row
        entry, now = self._arena.ledger.entries[job_id], time.time()
        sight = self.sights.setdefault(job_id, Sight())
        if sight.ended == (state, finished_ms, result):
            return
        if sight.ended is not None:
            sight.changed = f"{sight.ended!r:.200} to {(state, finished_ms, result)!r:.200}"
            sight.ended = None  # whatever it is now, it has to end
        if state is None:
            if entry.excused:
                self._open.pop(job_id, None)
            return
        self._open.setdefault(job_id, entry)
        number = int(attempt or 0)
        if owner and number:
            turn = sight.turns.setdefault(number, Turn(owner.decode(), now, now))
            turn.last_s = now
        if State(state.decode()).terminal:
            sight.ended, sight.ended_s = (state, finished_ms, result), now
            entry.ended_s = now
            self._open.pop(job_id, None)
            self._arena.ledger.progressed()
