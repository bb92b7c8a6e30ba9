"""Steps of decoding rows whose calls are noted, and made again in the steps of as many rows that follow.

Between two calls of a step Python took 12 us for the 14M shape, and 33 with 32 rows of the 135M one, whose
weights push it out of the caches: with one row half of a step. Measure with `python -m ops.bench replay`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from millstream_worker.engine.brain.plan import Plan
from millstream_worker.engine.runner.attention.breakable import BreakableAttention
from millstream_worker.engine.runner.model import LoadedModel, forward
from millstream_worker.engine.runner.native.attention import NativeAttention
from millstream_worker.engine.runner.native.library import Library
from millstream_worker.engine.runner.replay.tape import CannotReplay, Tape
from millstream_worker.engine.runner.replay.workspace import Workspace

MOST_ROWS = 64  # with more of them a step's arithmetic hides the calls
_ROW_BYTES = 2**19  # of what a step keeps in between, beside the logits


@dataclass(frozen=True, slots=True, eq=False)
class Noted:
    """A step of so many rows: where its inputs and answer lie, and its calls."""

    tokens: NDArray[np.int64]
    positions: NDArray[np.int64]
    inputs: tuple[Tensor, Tensor, Tensor]  # tokens, positions and which logits are wanted, [rows] each
    logits: Tensor  # [rows, vocabulary]
    calls: NDArray[np.int64]

    @property
    def functions(self) -> tuple[int, ...]:
        return tuple(self.calls[:, 0].tolist())


def play(library: Library, step: Noted) -> None:
    """Compute the step, of the inputs that are in their places."""
    library.replay(step.calls.ctypes.data, len(step.calls))


class NotedSteps:
    """Computes steps of decoding rows alone, on the CPU, for a compiled model. Raises CannotReplay."""

    def __init__(
        self, loaded: LoadedModel, attention: BreakableAttention, report: Callable[[str], None]
    ) -> None:
        backend = attention.backend
        if not isinstance(backend, NativeAttention) or not backend.library.replayed_arguments:
            raise CannotReplay("attention is not computed by our library")
        self._loaded = loaded
        self._attention = attention
        self._library = backend.library
        self._report = report
        self._workspace = Workspace(MOST_ROWS * (4 * loaded.vocab_size + _ROW_BYTES))
        weights = (*loaded.model.parameters(), *loaded.model.buffers())
        self._lasting = [tensor for tensor in weights if not tensor.is_mkldnn]  # those have no address
        self._steps: dict[int, Noted] = {}
        self._compared: set[tuple[int, ...]] = set()  # functions of steps that answered what they should
        self._given_up = False

    def run(self, plan: Plan) -> Tensor | None:
        """Logits [rows, vocabulary], in place until the next step; None for a step that is not of ours."""
        rows = plan.token_count
        if self._given_up or rows > MOST_ROWS or not rows == plan.decodes == len(plan.logit_indices):
            return None
        self._attention.begin(plan)
        step = self._steps.get(rows) or self._note(plan)
        if step is None:
            return None
        step.tokens[:], step.positions[:] = plan.tokens, plan.positions
        play(self._library, step)
        return step.logits

    def _note(self, plan: Plan) -> Noted | None:
        try:
            step = self._sound(plan)
        except CannotReplay as error:
            self._given_up = True
            self._report(f"steps are called from Python: {error}")
            return None
        self._steps[plan.token_count] = step
        return step

    def _sound(self, plan: Plan) -> Noted:
        """A noted step that answers what it should."""
        try:
            step = self._noted(plan)
            if step.functions not in self._compared:
                self._compare(step)
                self._compared.add(step.functions)
        except CannotReplay:
            raise
        except Exception as error:  # of names that torch does not promise
            raise CannotReplay(f"{type(error).__name__}: {error}") from error
        return step

    def _noted(self, plan: Plan) -> Noted:
        tokens, positions = plan.tokens.astype(np.int64), plan.positions.astype(np.int64)
        wanted = np.resize(plan.logit_indices, max(2, plan.token_count)).astype(np.int64)  # see `around`
        inputs = torch.from_numpy(tokens), torch.from_numpy(positions), torch.from_numpy(wanted)
        tape = Tape(self._workspace, (*self._lasting, *inputs), self._library.replayed_arguments)
        with tape.noting():
            logits = forward(self._loaded.model, *inputs)
        if not self._workspace.holds(logits):
            raise CannotReplay("the logits are not ours")
        return Noted(tokens, positions, inputs, logits[: plan.token_count], tape.calls)

    def _compare(self, step: Noted) -> None:
        """Other tokens at other places, computed in both ways: what was not noted would be missing. The keys
        and values that this leaves behind are those of the step that is computed next."""
        step.tokens[:] = (step.tokens + 1) % self._loaded.vocab_size
        step.positions[:] -= 1
        expected = forward(self._loaded.model, *step.inputs)[: len(step.tokens)].contiguous()
        play(self._library, step)
        if not torch.equal(step.logits.view(torch.uint8), expected.view(torch.uint8)):
            raise CannotReplay("a step whose calls were made again has another answer")
