"""Makes the steps that recorded ones are checked with: decoding rows and chunks of prompts, alone and after a
prefix that is long enough for its keys to be read in parts, each twice with other tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from millstream_worker.engine.brain.batch.plan import Int32, Plan, packed_plan
from millstream_worker.engine.runner.kv.storage import KVStorage
from millstream_worker.engine.runner.self_check.attention_steps import CONTEXTS, with_shared_prefix

_PREFIX = max(CONTEXTS)  # tokens: keys for several programs, also of a tile
_CHUNK = 21  # tokens
_OWN = 3  # tokens of a row beside prefix and chunks, at the most


@dataclass(frozen=True, slots=True)
class ReplaySteps:
    """Blocks [0, prefix) hold the prefix, and `own` more each those of one of the rows. The second time, the
    tokens of decoding rows are those last sampled in their slots."""

    rows: int
    prefix: int
    own: int
    block_size: int

    @classmethod
    def within(cls, storage: KVStorage, context_length: int, rows: int) -> ReplaySteps | None:
        """Returns steps of `rows` rows or fewer, with as long a prefix as fits; None: there is no room."""
        size, own = storage.block_size, -(-_OWN // storage.block_size)
        prefix = min(max(_PREFIX // size, 1), (context_length - 2) // size, storage.blocks // 2)
        rows = min(rows, (storage.blocks - prefix) // own)
        return cls(rows, prefix, own, size) if prefix > 0 and rows > 0 else None

    @property
    def cached(self) -> int:
        """Returns the number of tokens of the prefix."""
        return self.prefix * self.block_size

    def fill(self, tokens: int) -> Iterator[Plan]:
        """Yields steps of up to so many tokens that compute the prefix."""
        for start in range(0, self.cached, tokens):
            end = min(start + tokens, self.cached)
            yield self._plan([end - start], [end], np.arange(self.prefix)[None])

    def decodes(self) -> Iterator[Plan]:
        for rows in sorted({1, min(3, self.rows), self.rows}):
            for context in (1, 2):
                yield self._plan([1] * rows, [context] * rows, self._alone(rows), again=context > 1)
            for context in (1, 2):
                lens = [self.cached + context] * rows
                plan = self._plan([1] * rows, lens, self._after_prefix(rows), again=context > 1)
                yield with_shared_prefix(plan, self.cached) if rows > 1 else plan

    def mixed(self) -> Iterator[Plan]:
        """Yields chunks of prompts, fresh and later ones, with and without a decoding row."""
        chunk = min(_CHUNK, self.own * self.block_size)
        for size in (chunk, chunk - 1):
            yield self._plan([size], [size], self._alone(1))
        for context in (2, 3) if self.rows > 1 else ():
            again = context > 2
            yield self._plan([1, chunk], [context, chunk], self._alone(2), again=again)
            lens = [self.cached + context - 1, self.cached + 2]
            yield self._plan([1, 2], lens, self._after_prefix(2), again=again)

    def _alone(self, rows: int) -> Int32:
        """Returns block tables [rows, own]."""
        return (self.prefix + np.arange(rows * self.own, dtype=np.int32)).reshape(rows, self.own)

    def _after_prefix(self, rows: int) -> Int32:
        """Returns block tables [rows, prefix + own]."""
        return np.hstack([np.tile(np.arange(self.prefix, dtype=np.int32), (rows, 1)), self._alone(rows)])

    def _plan(
        self, query_lens: Sequence[int], kv_lens: Sequence[int], tables: ArrayLike, *, again: bool = False
    ) -> Plan:
        plan = packed_plan(query_lens, kv_lens, tables, self.block_size, samples=True)
        plan.from_device[: plan.decodes] = again
        return plan
