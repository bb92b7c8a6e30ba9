"""Tells what a step does to the state of each slot.

A row's draft tokens may turn out wrong, and no token can be taken out of a state again. So the state stays
before a row's tokens as long as some of them are drafts, and the slot *holds* what its functions were given
of these. The row's next step *replays* those that were right, before its own.
"""

from __future__ import annotations

import numpy as np

from millstream_worker.engine.brain.batch.plan import Int32, Plan

MOST_DRAFTS = 8  # of a row, in a step
_ANYWHERE = -1  # the state is a checkpoint's: it belongs where its row goes on


class SlotSegments:
    """Knows where the states of the slots stand."""

    def __init__(self, max_rows: int, most_held: int) -> None:
        self._most_held = most_held
        self._stands = np.full(max_rows, _ANYWHERE, np.int32)  # tokens in the state
        self._held = np.zeros(max_rows, np.int32)  # tokens behind them

    def loaded(self, slot: int) -> None:
        """A checkpoint was copied there."""
        self._stands[slot], self._held[slot] = _ANYWHERE, 0

    def begin(self, plan: Plan) -> Int32:
        """Returns [rows, 6], for each row of the step: slot, first token, tokens; whether it begins with
        zeros; how many of the held tokens it replays; whether its own are held."""
        firsts = np.flatnonzero(np.diff(plan.row_slots, prepend=-1))  # of the segments of a row
        slots, segments = plan.row_slots[firsts], np.diff(firsts, append=len(plan.row_slots))
        starts = plan.query_starts[firsts]
        tokens = np.diff(starts, append=plan.query_starts[-1])
        before = plan.kv_lens[firsts] - plan.query_lens[firsts]
        fresh, holds = before == 0, segments > 1
        stands, held = self._stands[slots], self._held[slots]
        replays = np.where(fresh | (stands == _ANYWHERE), 0, before - stands)
        if (tokens[holds] > self._most_held).any():
            raise RuntimeError(f"a slot holds {self._most_held} tokens, and a row has {tokens[holds].max()}")
        if wrong := np.flatnonzero((replays < 0) | (replays > held)).tolist():
            row = wrong[0]
            stands_at = f"its state stands at token {stands[row]}, with {held[row]} held behind it"
            raise RuntimeError(f"slot {slots[row]}: {stands_at}; its row goes on at {before[row]}")
        self._stands[slots] = np.where(holds, before, before + tokens)
        self._held[slots] = np.where(holds, tokens, 0)
        return np.stack((slots, starts, tokens, fresh, replays, holds), axis=1).astype(np.int32)
