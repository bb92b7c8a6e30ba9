"""Runs plans: forward over the packed step, then one draw per wanted logit. Knows rows as batch slots only.
It marks its progress: a layer attended, logits there, tokens drawn.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from millstream_worker.engine.brain.plan import Drawn, Int32, Plan
from millstream_worker.engine.runner.model import LoadedModel, connect, forward
from millstream_worker.engine.runner.sampler import DrawnTensors, Sampler
from millstream_worker.engine.runner.storage import KVStorage
from millstream_worker.engine.runner.transfer import to_device

Mark = Callable[[], None]


@dataclass(frozen=True, slots=True, eq=False)
class Launched:
    """A step on its way: what `settle` needs to bring its tokens to the host."""

    plan: Plan
    drawn: DrawnTensors


class Runner:
    """One model over one storage. Steps are settled in the order they were launched in, at once or later."""

    def __init__(
        self, loaded: LoadedModel, storage: KVStorage, sampler: Sampler, mark: Mark = lambda: None
    ) -> None:
        self._model = loaded.model
        self._device = loaded.device
        self._attention = connect(loaded, storage, mark)
        self._sampler = sampler
        self._mark = mark

    @torch.inference_mode()
    def launch(self, plan: Plan) -> Launched:
        """Start a step of at least one token; on the CPU it is complete on return."""
        with _memory():
            for load in plan.loads:
                self._sampler.load(load)
            logits = self.forward(plan)
            self._mark()
            return Launched(plan, self._sampler.draw(logits, plan))

    def settle(self, launched: Launched) -> Drawn:
        """The tokens of a launched step; waits for them."""
        with _memory():
            drawn = self._sampler.collect(launched.drawn)
        self._mark()
        return drawn

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


@contextlib.contextmanager
def _memory() -> Iterator[None]:
    """A device's, or torch's own, lack of memory comes out as everybody's."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise MemoryError(str(error)) from error
    except RuntimeError as error:
        if "can't allocate memory" in str(error):  # the CPU's allocator
            raise MemoryError(str(error)) from error
        raise
