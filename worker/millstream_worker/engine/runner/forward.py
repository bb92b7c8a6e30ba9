"""Computes the answer of a step's head, logits where it samples. `Eager` calls the model from Python; the
other forms (`replay`, `cuda_graphs`) replay recorded steps and fall back to it. Knows nothing of sampling."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from millstream_worker.engine.brain.batch.plan import Int64, Plan
from millstream_worker.engine.runner.attention.interface import AttentionBackend
from millstream_worker.engine.runner.device.transfer import together
from millstream_worker.engine.runner.kv.storage import KVStorage
from millstream_worker.engine.runner.model.load import LoadedModel, connect
from millstream_worker.engine.runner.states.state_backend import StateBackend
from millstream_worker.engine.runner.states.state_storage import StateStorage


def storage_of_states(
    loaded: LoadedModel, max_rows: int, places: int, drafts: int = 0
) -> StateStorage | None:
    """Returns memory for the states of so many slots, each with so many draft tokens, and of checkpoints;
    None for a model without states."""
    if not loaded.state_specs:
        return None
    return StateStorage(loaded.state_specs, max_rows, places, drafts)


class Forward(Protocol):
    """A model as the runner needs it. `eager` is the form without recorded steps."""

    @property
    def eager(self) -> Eager: ...

    def run(self, plan: Plan) -> Tensor:
        """Returns the answer [L, size] of the plan's head, for logits [L, vocabulary], valid until the next
        step; its keys and values are in the storage."""


@dataclass(slots=True, eq=False)
class Eager:
    """Calls the model from Python, for any step; one that has begun in the storage of states. `last_tokens`
    [slots] holds the last sampled token of each slot; `mark` is called with each layer."""

    loaded: LoadedModel
    storage: KVStorage
    last_tokens: Tensor
    mark: Callable[[], None] = lambda: None
    state_storage: StateStorage | None = None  # of models with recurrent states
    attention: AttentionBackend = field(init=False)
    states: StateBackend | None = field(init=False)

    def __post_init__(self) -> None:
        self.states = self.loaded.advance_over(self.state_storage) if self.state_storage else None
        self.attend_by(self.loaded.attend_over(self.storage))

    def attend_by(self, attention: AttentionBackend) -> None:
        """Attends by another backend of the same storage from now on."""
        self.attention = attention
        self.reconnect()

    def reconnect(self) -> None:
        """Connect the modules, again after a compilation has replaced them."""
        connect(self.loaded, self.attention, self.mark, self.states)

    @property
    def eager(self) -> Eager:
        return self

    def begin(self, plan: Plan) -> None:
        """Have the backends take in the step."""
        self.attention.begin(plan)
        if self.states is not None:
            self.states.begin()

    def run(self, plan: Plan) -> Tensor:
        self.begin(plan)
        return self.loaded.heads(plan.head, *self.inputs(plan))

    def inputs(self, plan: Plan) -> tuple[Tensor, Tensor, Tensor]:
        """Returns tokens and positions [T] and wanted places [L] of a step, int64 on the model's device."""
        arrays = [array.astype(np.int64) for array in (plan.tokens, plan.model_positions, plan.logit_indices)]
        if plan.from_device.any():
            arrays.append(sampled_in(plan))
        tokens, positions, wanted, *sources = together(arrays, self.loaded.device)
        if sources:
            tokens = token_ids(tokens, sources[0], self.last_tokens)
        return tokens, positions, wanted


def sampled_in(plan: Plan) -> Int64:
    """Returns [T] the batch slot whose last token stands at each place; -1 where the plan's own does."""
    sources = np.full(plan.token_count, -1, np.int64)
    places = np.flatnonzero(plan.from_device)
    if len(places):
        segments = np.searchsorted(plan.query_starts, places, side="right") - 1
        sources[places] = plan.row_slots[segments]
    return sources


def token_ids(tokens: Tensor, sources: Tensor, last_tokens: Tensor) -> Tensor:
    """Returns [T] int64: `tokens` where `sources`, both [T], are -1, else that slot's of `last_tokens`."""
    return torch.where(sources < 0, tokens, last_tokens[sources.clamp(min=0)])
