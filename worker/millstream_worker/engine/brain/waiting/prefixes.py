"""Tracks the cached prefix of each waiting row, including blocks that are published within the same step, and
groups rows with the same cached prefix.

A row watches one hash: that of its first block that is not in the pool. So a row is examined only when its
prefix has grown. Evicted blocks are noticed at the next examination.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from millstream_worker.engine.brain.batch.rows import Row
from millstream_worker.engine.brain.cache.blocks import BlockPool


@dataclass(slots=True, eq=False)
class _Group:
    number: int  # arrival of the first row with this prefix
    rows: int = 0


@dataclass(frozen=True, slots=True)
class _Prefix:
    """The cached prefix of one row."""

    cached: int  # blocks
    last: bytes | None  # hash of the last of them
    missing: bytes | None  # hash of the block after it


class Prefixes:
    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._known: dict[int, _Prefix] = {}  # by arrival
        self._watchers: dict[bytes, dict[int, Row]] = {}  # by missing hash, by arrival; no entry is empty
        self._groups: dict[bytes, _Group] = {}  # by last hash; no entry is empty

    def watch(self, row: Row) -> tuple[int, int]:
        """(blocks of the row's prefix in the pool, number of its group: 0 without cached blocks). `grown`
        returns the row when there are more.
        """
        chain, cached = row.chain, self._pool.estimate(row.chain)
        prefix = _Prefix(
            cached, chain[cached - 1] if cached else None, chain[cached] if cached < len(chain) else None
        )
        known = self._known.get(row.arrival)
        if prefix != known:
            if known is not None:
                self.forget(row)
            self._known[row.arrival] = prefix
            if prefix.last is not None:
                self._groups.setdefault(prefix.last, _Group(row.arrival)).rows += 1
            if prefix.missing is not None:
                self._watchers.setdefault(prefix.missing, {})[row.arrival] = row
        if prefix.missing is not None:
            self._pool.await_hash(prefix.missing)
        return cached, 0 if prefix.last is None else self._groups[prefix.last].number

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
        """Rows whose cached prefix has grown since they were watched; `watch` each again."""
        return [
            row for missing in self._pool.take_appeared() for row in self._watchers.get(missing, {}).values()
        ]

    def check(self, waiting: Iterable[Row]) -> None:
        """AssertionError unless exactly these rows are tracked, all of them waiting."""
        assert self._known.keys() == {row.arrival for row in waiting}, "prefixes are not the waiting rows'"
        members = Counter(prefix.last for prefix in self._known.values() if prefix.last is not None)
        assert members == {name: group.rows for name, group in self._groups.items()}, "groups are wrong"
        missing = {a: prefix.missing for a, prefix in self._known.items() if prefix.missing is not None}
        watched = {arrival: name for name, rows in self._watchers.items() for arrival in rows}
        assert missing == watched, "rows do not watch their first missing block"
