"""Masks the tokens of the batch's rows that follow a grammar, or have limits, before they are sampled, and
appends forced tokens after it.
"""

from __future__ import annotations

import numpy as np

from millstream_worker.engine.brain.batch.batch import Batch
from millstream_worker.engine.brain.batch.plan import TokenMasks
from millstream_worker.engine.brain.batch.planner import Launch
from millstream_worker.engine.brain.batch.rows import Row, RowState
from millstream_worker.engine.grammars.limited_matcher import RowMatcher

_WORD = 32  # tokens


class ConstrainedRows:
    """The rows that have a matcher. `vocab_size` is the number of logits of a token."""

    def __init__(self, batch: Batch, vocab_size: int) -> None:
        self._batch = batch
        self._words = -(-vocab_size // _WORD)

    def sampled_in(self, launch: Launch) -> bool:
        """True if any sample of the launch has a matcher."""
        return bool(self._batch.constrained[launch.sample_slots].any())

    def masks(self, launch: Launch) -> tuple[TokenMasks, frozenset[int]]:
        """Returns the tokens that the launch may sample, and the segments after which a draft token is not to
        be accepted. The samples of all earlier launches are in the rows' outputs.
        """
        refused = set()
        indices = [index for index, row in enumerate(launch.rows) if row.matcher and row.lives]
        bits = np.empty((len(indices), self._words), np.int32)
        begin, size = bits.ctypes.data, bits.strides[0]  # asked for once: it takes as long as a row's mask
        follows = launch.follows
        ahead: RowMatcher | None = None  # has followed the draft tokens before the sample
        for place, index in enumerate(indices):
            matcher = ahead or launch.rows[index].matcher
            assert matcher is not None, f"row {launch.rows[index].handle} has no matcher"
            matcher.fill(bits[place], begin + place * size)
            if follows is None or index >= len(follows.tokens):
                continue
            if ahead is not None and ahead.failure is not None:
                refused.add(index - 1)  # the row finds out by itself, if it comes there
            if follows.drafted[index]:
                ahead = ahead or matcher.copy()
                ahead.consume([int(follows.tokens[index])])
            else:
                ahead = None
        return TokenMasks(np.array(indices, np.int32), bits), frozenset(refused)

    def append_forced(self, launch: Launch, ended: list[tuple[Row, str]]) -> list[tuple[Row, list[int]]]:
        """Appends the tokens that grammars force after a settled launch, to rows that are not in `ended`;
        returns them by row, and adds to `ended` the rows that end with them.
        """
        if not self.sampled_in(launch):
            return []
        over = {row.handle for row, _ in ended}
        forced = []
        for row in dict.fromkeys(launch.rows):
            if row.state is not RowState.RUNNING or row.handle in over:
                continue
            if tokens := self._forced(row):
                forced.append((row, tokens))
                if (reason := row.finish_reason()) is not None:
                    ended.append((row, reason))
        return forced

    def _forced(self, row: Row) -> list[int]:
        """Appends the tokens that a row's grammar leaves no choice about, as one chunk of its next step. None
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
