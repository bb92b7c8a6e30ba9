"""The pool of checkpoints of recurrent state: which there are, where running rows are to make more, and for
which of those others wait. Knows places and hashes, no memory.

A checkpoint is the state of a row at the end of a full block, under that block's hash. It belongs to exactly
that many tokens: a state cannot be cut. So a row starts at the deepest checkpoint of its prompt whose keys
and values are cached, too. Running rows have *marks*, blocks of their prompts at whose ends they make one:

    fork            the prompts of rows that are known part there, or end
    second visit    keys and values were cached up to there, and no state: somebody comes back
    prompt's end    for the next turn of a chat; only in a free place, or in that of the turn before

    known rows   ── instruction ──┬── document A ──┬── question 1
                                  │                └── question 2        marks: ┬ and ┬, one copy each
                                  └── document B ───── question 3

A checkpoint is read from the plan after the one that makes it: loads precede a step, saves follow it.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from millstream_worker.engine.brain.batch.rows import Row

Pairs = list[tuple[int, int]]
T = TypeVar("T")
_Coming = tuple[bytes, int]  # hash of a mark, and the priority of the row that is to reach it


@dataclass(frozen=True, slots=True, order=True)
class Mark:
    """A checkpoint to make after so many blocks; `shared`: for it others may be evicted."""

    blocks: int
    shared: bool


class StatePool:
    """`places`: how many checkpoints there can be. `ends`: some are made at prompts' ends, too."""

    def __init__(self, places: int, block_size: int, *, ends: bool = True) -> None:
        self.saved = self.shared = self.loaded = 0  # since the start; `shared`: all but prompts' ends
        self._total = places
        self._block_size = block_size
        self._makes_ends = ends
        self._places: OrderedDict[bytes, int] = OrderedDict()  # by hash, least recently used first
        self._free = list(range(places - 1, -1, -1))
        self._fresh: set[bytes] = set()  # made by the newest plan
        self._ends: set[bytes] = set()  # made at the ends of prompts
        self._known: Counter[bytes] = Counter()  # blocks of prompts whose rows are not over
        self._marks: dict[int, list[Mark]] = {}  # of running rows, by arrival, rising
        self._begun: dict[int, bytes] = {}  # likewise: the checkpoints that they were loaded from
        self._coming: Counter[_Coming] = Counter()
        self._loads: Pairs = []
        self._saves: Pairs = []

    def row_added(self, row: Row) -> None:
        self._known.update(row.origin.chain)

    def row_over(self, row: Row) -> None:
        """It has ended, or was aborted."""
        _subtract(self._known, row.origin.chain)

    def depth(self, chain: Sequence[bytes], most: int) -> int:
        """Returns the blocks up to the deepest checkpoint within the first `most` of a hash chain."""
        if self._places:
            for blocks in range(most, 0, -1):
                if chain[blocks - 1] in self._places and chain[blocks - 1] not in self._fresh:
                    return blocks
        return 0

    def awaited(self, chain: Sequence[bytes], depth: int, priority: int) -> bool:
        """True if a running row is to make a checkpoint of this chain behind its first `depth` blocks. One of
        a lower lane may wait for long itself: a row of this `priority` does not wait for that."""
        if not self._coming and not self._fresh:
            return False
        lanes = range(priority + 1)
        return any(
            name in self._fresh or any((name, lane) in self._coming for lane in lanes)
            for name in chain[depth:]
        )

    def enter(self, row: Row, depth: int, cached: int) -> None:
        """The row got its slot. It starts after `depth` blocks; keys and values of `cached` were there."""
        assert row.slot is not None, f"row {row.handle} has no slot"
        if depth:
            begun = self._begun[row.arrival] = row.chain[depth - 1]
            self._places.move_to_end(begun)
            self._loads.append((self._places[begun], row.slot))
            self.loaded += 1
        chain = row.origin.chain[: (row.known - 1) // self._block_size]  # its last token is computed anyway
        shared = {blocks for blocks in range(depth + 1, len(chain) + 1) if self._parts(chain, blocks)}
        if (known_before := min(cached, len(chain))) > depth:
            shared.add(known_before)
        marks = [Mark(blocks, True) for blocks in shared]
        end = Mark(len(chain), False)
        if end.blocks > depth and end.blocks not in shared and self._end_has_place(row):
            marks.append(end)
        self._marks[row.arrival] = sorted(one for one in marks if chain[one.blocks - 1] not in self._places)
        self._coming.update(self._awaited_by(row, self._marks[row.arrival]))

    def leave(self, row: Row) -> None:
        """The row leaves its slot; what it has not made, others need not wait for."""
        _subtract(self._coming, self._awaited_by(row, self._marks.pop(row.arrival)))
        self._begun.pop(row.arrival, None)

    def next_tokens(self, row: Row, scheduled: int, most: int) -> int:
        """Returns the tokens of the row's next chunk, at most `most`: it ends where a mark is."""
        marks = self._marks[row.arrival]
        return min(most, marks[0].blocks * self._block_size - scheduled) if marks else most

    def reached(self, row: Row, tokens: int) -> None:
        """A chunk of the row is planned that ends after its first `tokens`."""
        marks = self._marks[row.arrival]
        if not marks or marks[0].blocks * self._block_size > tokens:
            return
        mark = marks.pop(0)
        _subtract(self._coming, self._awaited_by(row, [mark]))
        assert mark.blocks * self._block_size == tokens, f"row {row.handle}: a chunk went past its mark"
        name = row.origin.chain[mark.blocks - 1]
        place = None if name in self._places else self._place_for(row, mark)
        if place is not None:
            assert row.slot is not None, f"row {row.handle} has no slot"
            self._places[name] = place
            self._fresh.add(name)
            if not mark.shared:
                self._ends.add(name)
            self.shared += mark.shared
            self._saves.append((row.slot, place))
            self.saved += 1

    def forget(self, chain: Iterable[bytes]) -> None:
        """Remove the checkpoints of a hash chain: they may be damaged."""
        for name in chain:
            if name in self._places:
                self._free.append(self._evict(name))

    def begin_plan(self) -> None:
        """Let rows begin at what the plan before makes."""
        self._fresh.clear()

    def take_copies(self) -> tuple[Pairs, Pairs]:
        """Returns the plan's loads (place, slot), before its step, and saves (slot, place), after it."""
        loads, saves, self._loads, self._saves = self._loads, self._saves, [], []
        return loads, saves

    def check(self, known: Iterable[Row], running: Iterable[Row], scheduled: Sequence[int]) -> None:
        """Audits against the rows that are not over, and those in the batch with `scheduled` by slot. Raises
        AssertionError on any difference."""
        places = [*self._places.values(), *self._free]
        assert sorted(places) == list(range(self._total)), "places free and held do not add up"
        assert self._fresh | self._ends <= self._places.keys(), "a fresh checkpoint, or an end, has no place"
        blocks = Counter(name for row in known for name in row.origin.chain)
        assert blocks == self._known, "blocks of known rows are wrong"
        inside = {row.arrival: row for row in running}
        assert inside.keys() == self._marks.keys(), "marks are not the running rows'"
        coming: Counter[_Coming] = Counter()
        for arrival, marks in self._marks.items():
            row, at = inside[arrival], [mark.blocks for mark in marks]
            assert at == sorted(set(at)), f"row {row.handle}: marks do not rise"
            done = 0 if row.slot is None else scheduled[row.slot]
            assert not at or at[0] * self._block_size > done, f"row {row.handle}: it went past a mark"
            coming.update(self._awaited_by(row, marks))
        assert coming == self._coming, "checkpoints to come are wrong"

    def _awaited_by(self, row: Row, marks: Iterable[Mark]) -> list[_Coming]:
        return [(row.origin.chain[mark.blocks - 1], row.priority) for mark in marks]

    def _parts(self, chain: Sequence[bytes], blocks: int) -> bool:
        """True if other known rows share so many blocks, and not all of them one more that can be shared."""
        rows = self._known[chain[blocks - 1]]
        return rows > 1 and (blocks == len(chain) or self._known[chain[blocks]] < rows)

    def _end_has_place(self, row: Row) -> bool:
        """True if the end of the row's prompt could be kept now: else it need not be cut there."""
        return self._makes_ends and bool(self._free or self._replaced_by_end(row))

    def _replaced_by_end(self, row: Row) -> bytes | None:
        """Returns the end from which the row began, which nobody else would begin from."""
        begun = self._begun.get(row.arrival)
        return begun if begun in self._ends and self._known[begun] < 2 else None

    def _place_for(self, row: Row, mark: Mark) -> int | None:
        """Returns a free place, or one by eviction. For a shared mark: least recently used first, those that
        several known rows share last, and none of the newest plan's. For an end: that of the end from which
        the row began, as the chat goes on from the new one."""
        if self._free:
            return self._free.pop()
        if mark.shared:
            old = [name for name in self._places if name not in self._fresh]
            chosen = next((name for name in old if self._known[name] < 2), old[0] if old else None)
        else:
            chosen = self._replaced_by_end(row)
        return None if chosen is None else self._evict(chosen)

    def _evict(self, name: bytes) -> int:
        self._ends.discard(name)
        self._fresh.discard(name)
        return self._places.pop(name)


def _subtract(counts: Counter[T], things: Iterable[T]) -> None:
    """Keeps no zeros: they would stay for ever."""
    for thing in things:
        counts[thing] -= 1
        if not counts[thing]:
            del counts[thing]
