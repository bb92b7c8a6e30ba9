"""Rows that wait for the batch, and the order in which they get in.

Lane first (rows that were in the batch before go ahead in theirs), then the tenant that was served the fewest
tokens (virtual token counters: Sheng et al., Fairness in Serving Large Language Models, OSDI 2024), then
deadline, then longest cached prefix, then arrival. Ageing: every fourth admission belongs to the row that has
waited longest, whatever its lane, once that is `patience_s` or more; the row counts as interactive from then
on. So nothing starves, and interactive rows keep three places in four.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from itertools import takewhile
from math import inf

import numpy as np
from numpy.typing import NDArray

from millstream_worker.engine.brain.rows import Row, RowState

AGED_TURN = 4  # of so many admissions, one belongs to the longest waiting row
WINDOW = 64  # rows of one tenant and deadline among which the longest cached prefix is looked for
MAX_TENANTS = 4096  # above so many counters, those of idle tenants are forgotten

_Entry = tuple[float, int, Row]  # deadline, arrival
_Lane = tuple[int, int]  # priority, 0 for rows that were in the batch before


class WaitingRows:
    """`cached` estimates how many blocks of a row's prefix are in the cache."""

    def __init__(self, patience_s: float, cached: Callable[[Row], int]) -> None:
        self._patience_s = patience_s
        self._cached = cached
        self._rows: dict[int, Row] = {}  # by arrival
        self._lanes: dict[_Lane, dict[str, list[_Entry]]] = {}  # per tenant, sorted; nothing in it is empty
        self._served: dict[str, int] = {}  # tokens computed for each tenant
        self._floor = 0  # what the least served tenant had when last looked at
        self._admitted = 0

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows.values())

    def add(self, row: Row, now: float) -> None:
        row.waiting_since = now
        tenant = row.origin.request.tenant
        self._lift(tenant)
        self._rows[row.arrival] = row
        insort(self._lanes.setdefault(_lane(row), {}).setdefault(tenant, []), _entry(row))

    def remove(self, row: Row) -> None:
        del self._rows[row.arrival]
        lane, tenant = self._lanes[_lane(row)], row.origin.request.tenant
        entries = lane[tenant]
        del entries[bisect_left(entries, _entry(row))]
        if not entries:
            del lane[tenant]
        if not lane:
            del self._lanes[_lane(row)]
        if not self._rows:
            self._floor = max(self._floor, self._served[tenant])

    def admit(self, row: Row, now: float) -> None:
        """Take out a row that `order` has yielded."""
        aged = row is self._aged(now)
        self.remove(row)
        row.waited_s += now - row.waiting_since
        if aged:
            row.priority = 0
        self._admitted += 1

    def outrank(self, priorities: NDArray[np.int64]) -> bool:
        """Some waiting row is of a higher lane than some row of these lanes."""
        return bool(self._lanes) and bool((priorities > min(self._lanes)[0]).any())

    def charge(self, row: Row, tokens: int) -> None:
        """So many tokens of the row are about to be computed."""
        tenant = row.origin.request.tenant
        self._served[tenant] = self._served.get(tenant, self._floor) + tokens

    def order(self, now: float) -> Iterator[Row]:
        """Rows in the order in which to admit them. The consumer admits each before it asks for the next, or
        stops: a row that does not fit holds up those behind it, or a large one would wait for ever."""
        windows: dict[tuple[_Lane, str], list[Row]] = {}
        while self._rows:
            yield self._aged(now) or self._next(windows)

    def _aged(self, now: float) -> Row | None:
        if not self._rows or self._admitted % AGED_TURN != AGED_TURN - 1:
            return None
        row = max(self._rows.values(), key=lambda row: row.waited_s - row.waiting_since)
        return row if row.waited_s + now - row.waiting_since >= self._patience_s else None

    def _next(self, windows: dict[tuple[_Lane, str], list[Row]]) -> Row:
        """`windows`: what was sorted earlier in this round, the next row last; aged ones may have left."""
        lane = min(self._lanes)
        tenant = min(self._lanes[lane], key=self._served.__getitem__)
        window = windows.setdefault((lane, tenant), [])
        while window and window[-1].state is not RowState.WAITING:
            window.pop()
        if not window:
            entries = self._lanes[lane][tenant]
            alike = takewhile(lambda entry: entry[0] == entries[0][0], entries[:WINDOW])
            window += [row for _, _, row in alike]
            if not window[0].entered:  # rows that come back keep their order: who was first shall end first
                window.sort(key=self._cached, reverse=True)
            window.reverse()
        return window[-1]

    def _lift(self, tenant: str) -> None:
        """A tenant back from a pause starts level with the least served one: pauses save nothing up."""
        active = {name for lane in self._lanes.values() for name in lane}
        if tenant in active:
            return
        self._floor = min((self._served[name] for name in active), default=self._floor)
        self._served[tenant] = max(self._served.get(tenant, 0), self._floor)
        if len(self._served) > MAX_TENANTS:
            idle = sorted(self._served.keys() - active - {tenant}, key=self._served.__getitem__)
            for name in idle[: len(idle) // 2 + 1]:  # the nearer to the floor, the less is lost
                del self._served[name]


def _lane(row: Row) -> _Lane:
    return (row.priority, 0 if row.entered else 1)


def _entry(row: Row) -> _Entry:
    deadline_ms = row.origin.request.deadline_ms
    return (inf if deadline_ms is None else float(deadline_ms), row.arrival, row)
