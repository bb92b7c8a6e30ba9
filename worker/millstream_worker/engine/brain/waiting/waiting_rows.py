"""Holds waiting rows, and yields them in the order of their admission.

Lane first (rows that were in the batch before precede the others of their lane), then the tenant that was
served the fewest tokens (virtual token counters: Sheng et al., Fairness in Serving Large Language Models,
OSDI 2024), then deadline, then longest cached prefix. The prefix is updated while rows are admitted: the
first of a group computes the shared part, the rest of the group follows it, and only then comes the next
group. Arrival decides the rest; among rows of the batch lane that arrived together, the longest output goes
first, so that a batch does not end with a few long rows.

Ageing: every fourth admission belongs to the row of a lower lane that has waited longest, once that is
`patience_s` or more; the row counts as interactive from then on. So nothing starves, and interactive rows
keep three places in four. A row that is passed over in its own lane has such a turn less often, `own_turn`,
and never at the same admission: its prefix may need the memory of the group that is being finished. A row
that has waited that long in total and was preempted `AGED_TURN` times counts as interactive, too: otherwise
it would be displaced for ever if rows of a higher lane keep coming.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from math import floor, inf

import numpy as np
from numpy.typing import NDArray

from millstream_worker.engine.brain.batch.rows import Row
from millstream_worker.engine.brain.waiting.prefixes import Prefixes

AGED_TURN = 4  # one of this many admissions belongs to the longest waiting row of a lower lane
MAX_TENANTS = 4096  # above this number of counters, those of idle tenants are forgotten

# deadline; -cached blocks, group: separates groups with prefixes of one length; wave of arrival, -output to
# come; arrival
_Entry = tuple[float, int, int, float, int, int, Row]
_Lane = tuple[int, int]  # priority, 0 for rows that were in the batch before
_Wait = tuple[float, int, Row]  # start, minus earlier waits; arrival


class WaitingRows:
    """`own_turn`: one of this many admissions belongs to the longest waiting row of the highest lane."""

    def __init__(self, patience_s: float, prefixes: Prefixes, own_turn: int = AGED_TURN) -> None:
        self._patience_s = patience_s
        self._prefixes = prefixes
        self._own_turn = -(-own_turn // AGED_TURN) * AGED_TURN  # never the same as a lower lane's turn
        self._entries: dict[int, _Entry] = {}  # by arrival
        self._lanes: dict[_Lane, dict[str, list[_Entry]]] = {}  # per tenant, sorted; no entry is empty
        self._waits: dict[int, list[_Wait]] = {}  # per priority, longest waiting first; none is empty
        self._passed: list[Row] = []  # out of these orders for now
        self._served: dict[str, int] = {}  # tokens computed for each tenant
        self._floor = 0  # tokens of the least served tenant at the last check
        self._admitted = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Row]:
        return (entry[-1] for entry in self._entries.values())

    def add(self, row: Row, now: float) -> None:
        row.waiting_since = now
        self._lift(row.origin.request.tenant)
        self._file(row)

    def remove(self, row: Row) -> None:
        self._unfile(row)
        self._prefixes.forget(row)
        if not self._entries:
            self._floor = max(self._floor, self._served[row.origin.request.tenant])

    def admit(self, row: Row, now: float) -> None:
        """Remove a row that `order` has yielded."""
        aged = row is self._aged(now) and row.priority > min(self._lanes)[0]
        self.remove(row)
        row.waited_s += now - row.waiting_since
        if aged or (row.preemptions >= AGED_TURN and row.waited_s >= self._patience_s):
            row.priority = 0
        self._admitted += 1

    def pass_over(self, row: Row) -> None:
        """Let `order` go on behind a row that it has yielded, until `restore_passed`."""
        self._unfile(row)
        self._passed.append(row)

    def restore_passed(self) -> None:
        passed, self._passed = self._passed, []
        for row in passed:
            self._file(row)

    @property
    def interactive(self) -> bool:
        """True if a waiting row is of the interactive lane, or counts as one by its age."""
        return 0 in self._waits

    def outrank(self, priorities: NDArray[np.int64]) -> bool:
        """True if a waiting row is of a higher lane than some row of these lanes."""
        return bool(self._lanes) and bool((priorities > min(self._lanes)[0]).any())

    def charge(self, row: Row, tokens: int) -> None:
        """Charge the tenant for tokens of the row that are about to be computed."""
        tenant = row.origin.request.tenant
        self._served[tenant] = self._served.get(tenant, self._floor) + tokens

    def order(self, now: float) -> Iterator[Row]:
        """Yields rows in the order of admission. The consumer admits each before it asks for the next, passes
        it over, or stops: a row that does not fit holds up those behind it, or a large one would wait for
        ever.
        """
        while self._entries:
            for row in self._prefixes.grown():
                if row.arrival in self._entries:  # else it is passed over, and filed anew afterwards
                    self._refile(row)
            yield self._aged(now) or self._next()

    def _aged(self, now: float) -> Row | None:
        """Returns the row whose turn it is because of its wait; None if it is no one's."""
        highest = min(self._waits)
        passed_over = self._admitted % self._own_turn == self._own_turn - 2
        turns = [
            waits[0]
            for priority, waits in self._waits.items()
            if (passed_over if priority == highest else self._admitted % AGED_TURN == AGED_TURN - 1)
        ]
        since, _, row = min(turns, default=(inf, 0, None))
        return row if now - since >= self._patience_s else None

    def _next(self) -> Row:
        tenants = self._lanes[min(self._lanes)]
        tenant = min(tenants, key=self._served.__getitem__)
        while True:
            _, negative, *_, row = tenants[tenant][0]
            if self._prefixes.watch(row)[0] >= -negative:
                return row
            self._refile(row)  # some of its prefix was evicted

    def _file(self, row: Row) -> None:
        entry = self._entries[row.arrival] = self._entry(row)
        tenants = self._lanes.setdefault(_lane(row), {})
        insort(tenants.setdefault(row.origin.request.tenant, []), entry)
        insort(self._waits.setdefault(row.priority, []), _wait(row))

    def _refile(self, row: Row) -> None:
        """Sort the row by its current cached prefix."""
        tenants, tenant = self._lanes[_lane(row)], row.origin.request.tenant
        del tenants[tenant][bisect_left(tenants[tenant], self._entries[row.arrival])]
        entry = self._entries[row.arrival] = self._entry(row)
        insort(tenants[tenant], entry)

    def _unfile(self, row: Row) -> None:
        entry = self._entries.pop(row.arrival)
        tenants, tenant = self._lanes[_lane(row)], row.origin.request.tenant
        entries = tenants[tenant]
        del entries[bisect_left(entries, entry)]
        if not entries:
            del tenants[tenant]
        if not tenants:
            del self._lanes[_lane(row)]
        waits = self._waits[row.priority]
        del waits[bisect_left(waits, _wait(row))]
        if not waits:
            del self._waits[row.priority]

    def _entry(self, row: Row) -> _Entry:
        cached, group = self._prefixes.watch(row)
        deadline_ms, wave, to_come = row.origin.request.deadline_ms, 0.0, 0
        if row.priority and not row.entered:  # rows that come back end in the order of their start
            wave = floor(row.waiting_since / self._patience_s) if self._patience_s else row.waiting_since
            to_come = row.max_output - len(row.output)
        deadline = inf if deadline_ms is None else float(deadline_ms)
        return (deadline, -cached, group, wave, -to_come, row.arrival, row)

    def check(self) -> None:
        """Raises AssertionError if the orders and the known prefixes disagree."""
        entries = [entry for lane in self._lanes.values() for rows in lane.values() for entry in rows]
        assert {entry[-1].arrival: entry for entry in entries} == self._entries, "entries are wrong"
        assert len(entries) == len(self._entries), "a row waits twice"
        waits = {row.arrival for rows in self._waits.values() for *_, row in rows}
        assert waits == self._entries.keys(), "the longest waiting rows are wrong"
        self._prefixes.check(self)

    def _lift(self, tenant: str) -> None:
        """Start a tenant that comes back level with the least served one: pauses save up nothing."""
        active = {name for lane in self._lanes.values() for name in lane}
        if tenant in active:
            return
        self._floor = min((self._served[name] for name in active), default=self._floor)
        self._served[tenant] = max(self._served.get(tenant, 0), self._floor)
        if len(self._served) > MAX_TENANTS:
            idle = sorted(self._served.keys() - active - {tenant}, key=self._served.__getitem__)
            for name in idle[: len(idle) // 2 + 1]:  # those nearest to the floor lose least
                del self._served[name]


def _lane(row: Row) -> _Lane:
    return (row.priority, 0 if row.entered else 1)


def _wait(row: Row) -> _Wait:
    return (row.waiting_since - row.waited_s, row.arrival, row)
