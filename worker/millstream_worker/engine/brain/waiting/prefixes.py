"""How much of each waiting row's prefix is in the pool, kept current as blocks are published, also by rows
that get in within the same step; and which rows have the same there: a group.

A row watches one hash: that of its first block which is not there. So a row is looked at when its prefix has
grown, never in between. Blocks that were evicted are noticed when the row is looked at next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from millstream_worker.engine.brain.batch.rows import Row
from millstream_worker.engine.brain.cache.blocks import BlockPool


@dataclass(slots=True, eq=False)
class _Group:
    number: int  # arrival of the row that was the first to be seen with this prefix
    rows: int = 0


@dataclass(frozen=True, slots=True)
class _Prefix:
    """What is known of one row's."""

    cached: int  # blocks
    last: bytes | None  # hash of the last of them
    missing: bytes | None  # hash of the one after it


class Prefixes:
    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._known: dict[int, _Prefix] = {}  # by arrival
        self._watchers: dict[bytes, dict[int, Row]] = {}  # by missing hash, by arrival; none in it is empty
        self._groups: dict[bytes, _Group] = {}  # by last hash; none in it is empty

    def watch(self, row: Row) -> tuple[int, int]:
        """(blocks of the row's prefix that are in the pool, number of its group: 0 where there are none).
        `grown` names the row once there are more."""
        chain, cached = row.chain, self._pool.estimate(row.chain)
        prefix = _Prefix(
            cached, chain[cached - 1] if cached else None, chain[cached] if cached < len(chain) else None
        )
        known = self._known.get(row.arrival)
        if prefix != known:
            if known is not None:
                self.forget(row)
            self._note(row, prefix)
        if prefix.missing is not None:
            self._pool.await_hash(prefix.missing)
        return cached, 0 if prefix.last is None else self._groups[prefix.last].number

    def _note(self, row: Row, prefix: _Prefix) -> None:
        self._known[row.arrival] = prefix
        if prefix.last is not None:
            self._groups.setdefault(prefix.last, _Group(row.arrival)).rows += 1
        if prefix.missing is not None:
            self._watchers.setdefault(prefix.missing, {})[row.arrival] = row

    def forget(self, row: Row) -> None:
        prefix = self._known.pop(row.arrival)
        if prefix.last is not None:
            group = self._groups[prefix.last]
            group.rows -= 1
            if not group.rows:
                del self._groups[prefix.last]
        if prefix.missing is not None:
            watchers = self._watchers[prefix.missing]
            del watchers[row.arrival]
            if not watchers:
                del self._watchers[prefix.missing]
                self._pool.forgo_hash(prefix.missing)

    def grown(self) -> list[Row]:
        """Rows of whose prefix more is in the pool than when they were watched; `watch` each again."""
        return [
            row for missing in self._pool.take_appeared() for row in self._watchers.get(missing, {}).values()
        ]

    def check(self, waiting: Iterable[Row]) -> None:
        """AssertionError where what is kept is not of these rows, all of them waiting."""
        assert self._known.keys() == {row.arrival for row in waiting}, "prefixes are not the waiting rows'"
        members = Counter(prefix.last for prefix in self._known.values() if prefix.last is not None)
        assert members == {name: group.rows for name, group in self._groups.items()}, "groups are wrong"
        missing = {a: prefix.missing for a, prefix in self._known.items() if prefix.missing is not None}
        watched = {arrival: name for name, rows in self._watchers.items() for arrival in rows}
        assert missing == watched, "rows do not watch their first missing block"
