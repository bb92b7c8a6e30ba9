"""The pool of KV blocks: who holds which, and which hold a prefix that can be found again. Knows ids, no
memory.

A block is *blank* (free, holds nothing), *held* (by one row or, a shared prefix, by several) or *cached*
(free, but its hash is kept). Blank blocks are taken first, then cached ones, least recently used first; a
block taken forgets.

      take()            publish(hash)            release()             take() or share()
blank ──────▶ held ───────────────────▶ held ───────────────▶ cached ───────────────────▶ held
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence

from millstream_worker.engine.brain.cache.host_pool import HostPool


class BlockPool:
    """`host`: receives the pages of wanted blocks that are evicted."""

    def __init__(self, blocks: int, host: HostPool | None = None) -> None:
        self.total = blocks
        self.host = host
        self._wanted: set[int] = set()  # cached blocks whose row will come back
        self._references = [0] * blocks
        self._hashes: list[bytes | None] = [None] * blocks
        self._by_hash: dict[bytes, int] = {}
        self._blank = list(range(blocks - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._awaited: set[bytes] = set()  # hashes whose publication somebody awaits
        self._appeared: list[bytes] = []  # those of them that were published since the last call

    @property
    def free(self) -> int:
        """Blocks that `take` can return, the cached ones included."""
        return len(self._blank) + len(self._cached)

    @property
    def blank(self) -> int:
        """Blocks that `take` can return without forgetting a cached one."""
        return len(self._blank)

    @property
    def cached(self) -> int:
        return len(self._cached)

    def take(self) -> int:
        """A block for one holder, its content void. The caller has checked `free`."""
        if self._blank:
            block = self._blank.pop()
        else:
            block, _ = self._cached.popitem(last=False)
            old = self._hashes[block]
            assert old is not None, f"cached block {block} has no hash"
            del self._by_hash[old]
            self._hashes[block] = None
            if block in self._wanted:
                self._wanted.remove(block)
                if self.host is not None:
                    self.host.keep(block, old)
        self._references[block] = 1
        return block

    def share(self, block: int) -> None:
        """Add a holder to a block found by `match`."""
        if self._references[block] == 0:
            del self._cached[block]
            self._wanted.discard(block)
        self._references[block] += 1

    def release(self, blocks: Sequence[int], wanted: bool = False) -> None:
        """Remove a holder from each block of a row, given from its first to its last. `wanted`: the row will
        come back for them.
        """
        for block in reversed(blocks):  # the beginning of a prefix is worth most: its tail is evicted first
            self._references[block] -= 1
            assert self._references[block] >= 0, f"block {block} was released once too often"
            if self._references[block] == 0:
                if self._hashes[block] is None:
                    self._blank.append(block)
                else:
                    self._cached[block] = None
                    if wanted:
                        self._wanted.add(block)

    def publish(self, block: int, block_hash: bytes) -> None:
        """Let a held, full block be found by its hash. Of several with one content the first is found."""
        if block_hash not in self._by_hash:
            self._by_hash[block_hash] = block
            self._hashes[block] = block_hash
            if block_hash in self._awaited:
                self._awaited.remove(block_hash)
                self._appeared.append(block_hash)

    def await_hash(self, block_hash: bytes) -> None:
        """Let `take_appeared` return this hash, once, when a block is published under it."""
        self._awaited.add(block_hash)

    def forgo_hash(self, block_hash: bytes) -> None:
        """Nobody waits for this hash any more; `take_appeared` may still return it."""
        self._awaited.discard(block_hash)

    def take_appeared(self) -> list[bytes]:
        """The awaited hashes that were published since the last call."""
        appeared, self._appeared = self._appeared, []
        return appeared

    def forget(self, blocks: Sequence[int]) -> None:
        """Remove these blocks' hashes: their content is damaged."""
        for block in blocks:
            old = self._hashes[block]
            if old is not None:
                del self._by_hash[old]
                self._hashes[block] = None
                if self.host is not None:
                    self.host.drop(old)

    def match(self, chain: Sequence[bytes], most: int) -> list[int]:
        """The blocks of the longest known prefix of a hash chain, at most `most`."""
        found: list[int] = []
        for block_hash in chain[:most]:
            block = self._by_hash.get(block_hash)
            if block is None:
                break
            found.append(block)
        return found

    def estimate(self, chain: Sequence[bytes]) -> int:
        """The approximate number of blocks that `match` would find, in logarithmic time: tails are evicted
        first, so that a known block nearly always has known predecessors.
        """
        return bisect_left(chain, True, key=lambda block_hash: block_hash not in self._by_hash)

    def unheld(self, blocks: Sequence[int]) -> int:
        """Number of these blocks that are free now, and would leave the free ones if shared."""
        return sum(self._references[block] == 0 for block in blocks)

    def held_once(self, blocks: Sequence[int]) -> int:
        """Number of these blocks that become free when one holder releases them."""
        return sum(self._references[block] == 1 for block in blocks)

    def check(self, tables: Iterable[Sequence[int]]) -> None:
        """Audit against the block tables of all rows; AssertionError on any difference."""
        holders = Counter(block for table in tables for block in table)
        assert self._references == [holders[block] for block in range(self.total)], (
            "reference counts are wrong"
        )
        free = [*self._blank, *self._cached]
        assert len(set(free)) == len(free), "a block is free twice"
        assert set(free) == {b for b in range(self.total) if not holders[b]}, "free and held do not add up"
        assert all(self._hashes[block] is None for block in self._blank), "a blank block has a hash"
        assert all(self._hashes[block] is not None for block in self._cached), "a cached block has no hash"
        named = {name: block for block, name in enumerate(self._hashes) if name is not None}
        assert named == self._by_hash, "the map from hashes to blocks is wrong"
        assert self._wanted <= self._cached.keys(), "a block is wanted that is not cached"
        if self.host is not None:
            self.host.check()
