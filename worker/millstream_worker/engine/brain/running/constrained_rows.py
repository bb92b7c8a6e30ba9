"""The batch's rows that follow a grammar: masks before they are sampled, forced tokens after it."""

from __future__ import annotations

import numpy as np

from millstream_worker.engine.brain.batch.batch import Batch
from millstream_worker.engine.brain.batch.plan import TokenMasks
from millstream_worker.engine.brain.batch.planner import Launch
from millstream_worker.engine.brain.batch.rows import Row, RowState

_WORD = 32  # tokens


class ConstrainedRows:
    """`vocab_size`: logits of a token."""

    def __init__(self, batch: Batch, vocab_size: int) -> None:
        self._batch = batch
        self._words = -(-vocab_size // _WORD)

    def sampled_in(self, launch: Launch) -> bool:
        """Whether any sample of the launch follows a grammar."""
        return bool(self._batch.constrained[launch.sample_slots].any())

    def masks(self, launch: Launch) -> TokenMasks:
        """What the launch may sample. The samples of all earlier launches are in the rows' outputs."""
        members = [(index, row) for index, row in enumerate(launch.rows) if row.matcher and row.lives]
        bits = np.empty((len(members), self._words), np.int32)
        begin, size = (
            bits.ctypes.data,
            bits.strides[0],
        )  # asked for once: a row's would take as long as its mask
        for place, (_, row) in enumerate(members):
            assert row.matcher is not None, f"row {row.handle} has no grammar"
            row.matcher.fill(bits[place], begin + place * size)
        return TokenMasks(np.array([index for index, _ in members], np.int32), bits)

    def append_forced(self, launch: Launch, ended: list[tuple[Row, str]]) -> list[tuple[Row, list[int]]]:
        """Append what grammars force after a settled launch, to rows that are not in `ended`; returns it by
        row, and adds to `ended` the rows that end with it.
        """
        if not self.sampled_in(launch):
            return []
        over = {row.handle for row, _ in ended}
        forced = []
        for row in launch.rows:
            if row.state is not RowState.RUNNING or row.handle in over:
                continue
            if tokens := self._forced(row):
                forced.append((row, tokens))
                if (reason := row.finish_reason()) is not None:
                    ended.append((row, reason))
        return forced

    def _forced(self, row: Row) -> list[int]:
        """Append the tokens that a row's grammar leaves no choice about, as one chunk of its next step. None
        where a launch of the row is in flight, or each of them needs logits: these come one by one, by masks
        that allow nothing else, and are the same.
        """
        if row.matcher is None or row.steps_singly or self._batch.in_flight(row):
            return []
        tokens = row.matcher.forced()[: row.max_output - len(row.output)]
        end = next((place for place, token in enumerate(tokens) if token in row.end_ids), None)
        if end is not None:  # one of the request's own
            del tokens[end + 1 :]
        if tokens:
            row.matcher.consume(tokens)
            row.output += tokens
            self._batch.extend(row, tokens)
        return tokens
