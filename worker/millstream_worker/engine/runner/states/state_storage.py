"""The states of all batch slots, and of all checkpoints: owns the memory and how a state lies in it.

    memory           [max_rows + places, numbers of a row] float32, one module after the other
    convolutions[n]  [max_rows + places, taps − 1, channels]              views of it
    rules[n]         [max_rows + places, heads, key_dim, value_dim]

So a checkpoint is one piece of memory, and copied as such. What a row finds in its slot is void unless it was
loaded: one that begins at position 0 begins with zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
import torch
from torch import Tensor

from millstream_worker.engine.brain.batch.plan import Int32, Plan
from millstream_worker.engine.runner.states.held_inputs import held_tokens, room_for
from millstream_worker.engine.runner.states.slot_segments import SlotSegments
from millstream_worker.engine.runner.states.spec import ITEM_BYTES, StateSpec, bytes_per_row


class StateStorage:
    """Holds `max_rows` slots and `places` checkpoints; zeros at first. A row has up to
    `drafts` tokens in a step that may turn out wrong. `segments`: of the step that has begun."""

    def __init__(self, specs: Sequence[StateSpec], max_rows: int, places: int, drafts: int = 0) -> None:
        self.specs = tuple(specs)
        self.max_rows = max_rows
        self.memory = torch.zeros(max_rows + places, bytes_per_row(specs) // ITEM_BYTES)
        self.convolutions: list[Tensor] = []
        self.rules: list[Tensor | None] = []
        self._taken = 0
        for spec in self.specs:
            self.convolutions.append(self._view(spec.convolution.shape))
            self.rules.append(None if spec.rule is None else self._view(spec.rule.shape))
        self.most_held = held_tokens(drafts)
        self.held = [room_for(spec, max_rows, self.most_held) for spec in self.specs]
        self.segments: Int32 = np.empty((0, 6), np.int32)
        self._slot_segments = SlotSegments(max_rows, self.most_held)

    def begin(self, plan: Plan) -> None:
        """Copies the step's checkpoints to slots, and finds what it does to each."""
        for place, slot in plan.state_loads.tolist():
            self.memory[slot].copy_(self.memory[self.max_rows + place])
            self._slot_segments.loaded(slot)
        self.segments = self._slot_segments.begin(plan)

    def end(self, plan: Plan) -> None:
        """Makes the step's checkpoints of slots."""
        for slot, place in plan.state_saves.tolist():
            self.memory[self.max_rows + place].copy_(self.memory[slot])

    def _view(self, shape: tuple[int, ...]) -> Tensor:
        begin, self._taken = self._taken, self._taken + prod(shape)
        return self.memory[:, begin : self._taken].view(len(self.memory), *shape)
