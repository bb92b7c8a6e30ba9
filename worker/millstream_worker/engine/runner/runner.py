"""Runs plans: forward over the packed step, then one draw per wanted logit. Knows rows as batch slots
only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from millstream_worker.engine.brain.plan import Drawn, Int32, Plan
from millstream_worker.engine.runner.model import LoadedModel, connect, forward
from millstream_worker.engine.runner.sampler import DrawnTensors, Sampler
from millstream_worker.engine.runner.storage import KVStorage
from millstream_worker.engine.runner.transfer import to_device


@dataclass(frozen=True, slots=True, eq=False)
class Launched:
    """A step on its way: what `settle` needs to bring its tokens to the host."""

    plan: Plan
    drawn: DrawnTensors


class Runner:
    """One model over one storage. Steps are settled in the order they were launched in, at once or later."""

    def __init__(self, loaded: LoadedModel, storage: KVStorage, sampler: Sampler) -> None:
        self._model = loaded.model
        self._device = loaded.device
        self._attention = connect(loaded, storage)
        self._sampler = sampler

    @torch.inference_mode()
    def launch(self, plan: Plan) -> Launched:
        """Start a step of at least one token; on the CPU it is complete on return."""
        for load in plan.loads:
            self._sampler.load(load)
        return Launched(plan, self._sampler.draw(self.forward(plan), plan))

    def settle(self, launched: Launched) -> Drawn:
        """The tokens of a launched step; waits for them."""
        return self._sampler.collect(launched.drawn)

    @torch.inference_mode()
    def forward(self, plan: Plan) -> torch.Tensor:
        """Logits [L, vocabulary] of a step, float32; its keys and values are in the storage afterwards."""
        self._attention.begin(plan)
        positions, wanted = self._index(plan.positions), self._index(plan.logit_indices)
        return forward(self._model, self._tokens(plan), positions, wanted).float()

    def _tokens(self, plan: Plan) -> torch.Tensor:
        """Token ids [T]: the plan's, or what the row's slot drew last where the host has not seen it yet."""
        tokens = self._index(plan.tokens)
        if not plan.from_device.any():
            return tokens
        slots = self._index(np.repeat(plan.row_slots, plan.query_lens))
        return torch.where(
            to_device(plan.from_device, self._device), self._sampler.last_tokens[slots], tokens
        )

    def _index(self, array: Int32) -> torch.Tensor:
        return to_device(array.astype(np.int64), self._device)
