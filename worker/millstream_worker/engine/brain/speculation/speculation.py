"""Chooses the draft tokens of a step: for rows that decode, as many as pay by what steps have cost, and no
more than leave everything else as it is. They take blank blocks only, and no prompt's place.
"""

from __future__ import annotations

from collections import Counter
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from millstream_worker.engine.brain.batch.plan import Sampled
from millstream_worker.engine.brain.batch.planner import Drafts, Launch, Selection
from millstream_worker.engine.brain.batch.rows import Row
from millstream_worker.engine.brain.running.running_rows import RunningRows
from millstream_worker.engine.brain.speculation.step_costs import StepCosts
from millstream_worker.engine.brain.speculation.text_drafter import MOST, Drafter
from millstream_worker.engine.brain.speculation.verification import accepted

_LIKELY = 0.5  # survival of draft tokens that are verified whatever they cost, if that is asked for
_ROWS_A_SKIP = 4  # rows whose guesses take about as long as they may in a step


class Speculation:
    """`always`: likely draft tokens are verified whether they pay or not. A step has at most `max_rows`
    segments, with draft tokens, too: for so many logits memory is kept aside. A row has up to `most_drafts`;
    0: as many as are guessed.
    """

    def __init__(
        self,
        running_rows: RunningRows,
        max_rows: int,
        drafter: Drafter,
        *,
        always: bool = False,
        most_drafts: int = 0,
    ) -> None:
        self._running_rows = running_rows
        self._batch = running_rows.batch
        self._most = max_rows
        self._most_drafts = most_drafts or MOST
        self._always = always
        self._drafter = drafter
        self._costs = StepCosts(max_rows)
        self._skipped = 0  # steps left out since rows were last looked at in vain
        self._skips = 0  # of those, still to come

    def wants(self) -> bool:
        """True if decoding rows have draft tokens that pay, as far as their outputs are known."""
        batch = self._batch
        to_prefill = batch.known[batch.prefilling] - batch.scheduled[batch.prefilling]
        return bool(self._chosen(batch.decodes(), int(to_prefill.sum()), self._most))

    def draft(self, selection: Selection) -> None:
        """Add draft tokens to a selection of which nothing is in flight."""
        prompt_tokens = sum(chunk.tokens for chunk in selection.chunks)
        chosen = self._chosen(selection.decodes, prompt_tokens, selection.budget)
        if not chosen:
            return
        drafts = [self._with_blocks(slot, chosen.get(slot, [])) for slot in selection.decodes.tolist()]
        counts = np.array([len(tokens) for tokens in drafts], np.int32)
        if counts.any():
            packed = np.array([token for tokens in drafts for token in tokens], np.int32)
            selection.drafts = Drafts(counts, packed)

    def verify(self, launch: Launch, sampled: Sampled) -> tuple[Launch, Sampled]:
        """Returns the accepted samples of a launch, and frees the blocks of rejected drafts."""
        if launch.follows is None:
            return launch, sampled
        launch, sampled = accepted(launch, sampled)
        for row, kv_len in zip(self._batch.at(launch.slots), launch.kv_lens.tolist(), strict=True):
            self._running_rows.shrink(row, kv_len)
        return launch, sampled

    def count(self, launch: Launch, verified: Launch, handles: list[int]) -> list[tuple[int, int, int]]:
        """Returns a Step's `drafts`. `handles`: those of the verified launch's samples that are output."""
        if launch.follows is None:
            return []
        drafted = Counter(launch.rows[index].handle for index in np.flatnonzero(launch.follows.drafted))
        right, given = Counter(row.handle for row in verified.rows), Counter(handles)
        drafts = [
            (handle, tokens, min(right[handle] - 1, given[handle])) for handle, tokens in drafted.items()
        ]
        self._running_rows.totals.drafted += sum(tokens for _, tokens, _ in drafts)
        self._running_rows.totals.accepted += sum(tokens for _, _, tokens in drafts)
        return drafts

    def learn(self, launch: Launch, step_s: float, ended: list[tuple[Row, str]]) -> None:
        """Learns from a settled launch, and from the rows that end with it."""
        self._costs.settled(launch.tokens, step_s)
        for row, _ in ended:
            self._drafter.learn(row)

    def _chosen(self, slots: NDArray[np.intp], prompt_tokens: int, budget: int) -> dict[int, list[int]]:
        """Returns draft tokens by slot, at most `budget`."""
        room = min(self._most - len(slots) - prompt_tokens, budget)
        if not len(slots) or room < 1:
            return {}
        self._skips -= 1
        if self._skips >= 0:  # many rows without drafts that pay are looked at now and then
            return {}
        chosen = self._that_pay(slots, prompt_tokens, room)
        self._skipped = 0 if chosen else min(2 * self._skipped + 1, len(slots) // _ROWS_A_SKIP)
        self._skips = self._skipped
        return chosen

    def _that_pay(self, slots: NDArray[np.intp], prompt_tokens: int, room: int) -> dict[int, list[int]]:
        rows, tokens = len(slots), len(slots) + prompt_tokens
        if not (self._always or rows < _ROWS_A_SKIP or self._costs.pays(tokens, rows)):
            return {}
        guesses, chances = self._guessed(slots)
        chances = sorted(chances, key=itemgetter(0), reverse=True)[:room]
        survivals = [survival for survival, _ in chances]
        if self._always:
            count = sum(survival >= _LIKELY for survival in survivals)
        else:
            count = self._costs.best(tokens, rows, survivals)
        counts = Counter(slot for _, slot in chances[:count])
        return {slot: guesses[slot][:count] for slot, count in counts.items()}

    def _guessed(self, slots: NDArray[np.intp]) -> tuple[dict[int, list[int]], list[tuple[float, int]]]:
        """Returns guessed tokens by slot, and for each the probability that it is accepted, with its slot."""
        guesses, chances = {}, []
        room = self._batch.last_input[slots] - self._batch.scheduled[slots] - 1
        room = np.minimum(room, self._most_drafts)
        for row, most in zip(self._batch.at(slots), room.tolist(), strict=True):
            guess = self._drafter.guess(row) if row.may_draft else None
            if guess is None or row.slot is None:
                continue
            guesses[row.slot] = tokens = guess.tokens[:most]
            survival = self._drafter.acceptance.survival(guess.source, guess.agreeing, len(tokens))
            chances += [(chance, row.slot) for chance in survival]
        return guesses, chances

    def _with_blocks(self, slot: int, tokens: list[int]) -> list[int]:
        """Cuts a row's drafts to what its grammar allows and blank blocks hold; allocates those blocks."""
        row = self._batch.rows[slot]
        assert row is not None, f"slot {slot} is empty"
        if tokens and row.matcher is not None:
            tokens = tokens[: row.matcher.valid(tokens)]
        if not tokens:
            return tokens
        pool, block_size = self._running_rows.pool, self._batch.block_size
        held = (len(row.blocks) + pool.blank) * block_size - int(self._batch.scheduled[slot])
        tokens = tokens[: held - 1]
        self._running_rows.grow(row, max(self._batch.missing_blocks(row, 1 + len(tokens)), 0))
        return tokens
