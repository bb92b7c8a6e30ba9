"""The states of all batch slots, and of all checkpoints: owns the memory and how a state lies in it.

    memory           [max_rows + places, numbers of a row] float32, one module after the other
    convolutions[n]  [max_rows + places, taps − 1, channels]              views of it
    rules[n]         [max_rows + places, heads, key_dim, value_dim]

So a checkpoint is one piece of memory, and copied as such. What a row finds in its slot is void unless it was
loaded: a segment that begins at position 0 begins with zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from millstream_worker.engine.brain.batch.plan import Int32
from millstream_worker.engine.runner.states.spec import ITEM_BYTES, StateSpec, bytes_per_row


class StateStorage:
    """Holds `max_rows` slots and `places` checkpoints; zeros at first."""

    def __init__(self, specs: Sequence[StateSpec], max_rows: int, places: int) -> None:
        self.specs = tuple(specs)
        self.max_rows = max_rows
        self.memory = torch.zeros(max_rows + places, bytes_per_row(specs) // ITEM_BYTES)
        self.convolutions: list[Tensor] = []
        self.rules: list[Tensor | None] = []
        self._taken = 0
        for spec in self.specs:
            self.convolutions.append(self._view(spec.convolution.shape))
            self.rules.append(None if spec.rule is None else self._view(spec.rule.shape))

    def load(self, pairs: Int32) -> None:
        """Copies checkpoints to slots: [N, 2] place, slot."""
        for place, slot in pairs.tolist():
            self.memory[slot].copy_(self.memory[self.max_rows + place])

    def save(self, pairs: Int32) -> None:
        """Makes checkpoints of slots: [M, 2] slot, place."""
        for slot, place in pairs.tolist():
            self.memory[self.max_rows + place].copy_(self.memory[slot])

    def _view(self, shape: tuple[int, ...]) -> Tensor:
        begin, self._taken = self._taken, self._taken + prod(shape)
        return self.memory[:, begin : self._taken].view(len(self.memory), *shape)
