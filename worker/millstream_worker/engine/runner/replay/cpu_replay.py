"""Records the calls of decode steps, and replays them in later steps of as many rows.

Between two calls of a step Python took 12 us for the 14M shape, half of a step of one row, and 33 us with 32
rows of the 135M shape, whose weights push it out of the caches. Measure with `python -m ops.bench replay`.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from millstream_worker.engine.brain.batch.plan import Plan
from millstream_worker.engine.runner.attention.native.native_backend import NativeAttention
from millstream_worker.engine.runner.forward import Eager, Forward
from millstream_worker.engine.runner.model.logits import FEWEST
from millstream_worker.engine.runner.native.library import Library
from millstream_worker.engine.runner.replay.call_recorder import CallRecorder, CannotReplay
from millstream_worker.engine.runner.replay.workspace import Workspace

MOST_ROWS = 64  # with more of them a step's arithmetic hides the calls
_ROW_BYTES = 2**19  # of what a step keeps in between, beside the logits
# Steps of a size before one is recorded, as some come once: recording takes as long again as computing, and
# comparing three times as long.
_PASSED = 2
_MARKED = 64  # calls, between two of which progress is marked
_OFF = "CPU replay is off"  # in the log


@dataclass(frozen=True, slots=True, eq=False)
class RecordedStep:
    """A step of so many rows: where its inputs and answer lie, and its calls."""

    tokens: NDArray[np.int64]
    positions: NDArray[np.int64]
    inputs: tuple[Tensor, Tensor, Tensor]  # tokens and positions [rows], and which logits are wanted
    logits: Tensor  # [rows, vocabulary]
    calls: NDArray[np.int64]

    @property
    def functions(self) -> tuple[int, ...]:
        return tuple(self.calls[:, 0].tolist())


def replay_calls(library: Library, step: RecordedStep, mark: Callable[[], None] = lambda: None) -> bool:
    """Compute the step, of the inputs that are in their places; `mark` is called on the way. False where a
    call failed: called from Python it says why."""
    begin, size = step.calls.ctypes.data, step.calls.strides[0]
    for first in range(0, len(step.calls), _MARKED):
        if not library.replay(begin + first * size, min(_MARKED, len(step.calls) - first)):
            return False
        mark()
    return True


def workspace_bytes(vocab_size: int) -> int:
    """Returns the bytes that recorded steps may use for what they compute in between."""
    return MOST_ROWS * (4 * vocab_size + _ROW_BYTES)


def replayed(eager: Eager, report: Callable[[str], None]) -> Forward:
    """Returns the form that a compiled model gets on the CPU."""
    try:
        form = CpuReplay(eager, report)
    except CannotReplay as error:
        report(f"{_OFF}: {error}")
        return eager
    report("decode steps are recorded and replayed")
    return form


class CpuReplay:
    """Replays steps of decoding rows alone, on the CPU, for a compiled model. Raises CannotReplay."""

    def __init__(
        self, eager: Eager, report: Callable[[str], None], recorder: type[CallRecorder] = CallRecorder
    ) -> None:
        loaded, backend = eager.loaded, eager.attention
        if not isinstance(backend, NativeAttention) or not backend.library.replayed_arguments:
            raise CannotReplay("attention is not computed by our library")
        self.eager = eager
        self._loaded = loaded
        self._attention = eager.attention
        self._library = backend.library
        self._report = report
        self._recorder = recorder
        self._mark = eager.mark
        self._most_rows = MOST_ROWS
        try:
            self._workspace = Workspace(workspace_bytes(loaded.vocab_size))
        except MemoryError as error:
            raise CannotReplay(str(error)) from error
        self._lasting = [*loaded.model.parameters(), *loaded.model.buffers()]
        self._seen: Counter[int] = Counter()  # steps of so many rows
        self._steps: dict[int, RecordedStep] = {}
        self._compared: set[tuple[int, ...]] = set()  # functions of steps that answered what they should

    def run(self, plan: Plan) -> Tensor:
        logits = self.replay(plan)
        return self.eager.run(plan) if logits is None else logits

    def replay(self, plan: Plan) -> Tensor | None:
        """Logits [rows, vocabulary], in place until the next step; None for a step that is not of ours."""
        rows = plan.token_count
        if rows > self._most_rows or not rows == plan.decodes == len(plan.logit_indices):
            return None
        if plan.from_device.any():
            return None
        step = self._steps.get(rows)
        if step is None:
            self._seen[rows] += 1
            return self._record(plan) if self._seen[rows] > _PASSED else None
        self._attention.begin(plan)
        return self._replay(step, plan)

    def _replay(self, step: RecordedStep, plan: Plan) -> Tensor | None:
        rows = plan.token_count
        step.tokens[:rows], step.positions[:rows] = plan.tokens, plan.positions
        return step.logits if replay_calls(self._library, step, self._mark) else None

    def _record(self, plan: Plan) -> Tensor | None:
        self._attention.begin(plan)
        try:
            with _refusals():
                step = self._recorded(plan)
                known = step.functions in self._compared
                if not known:
                    self._compare(step)
        except MemoryError:
            self._most_rows = plan.token_count - 1  # smaller ones do with less
            return None
        except CannotReplay as error:
            self._most_rows = 0
            self._steps.clear()
            self._report(f"{_OFF}: {error}")
            return None
        self._compared.add(step.functions)
        self._steps[plan.token_count] = step
        return step.logits if known else self._replay(step, plan)

    def _recorded(self, plan: Plan) -> RecordedStep:
        """Computes the step, too."""
        size = max(FEWEST, plan.token_count)
        tokens, positions, wanted = (
            np.resize(array, size).astype(np.int64)
            for array in (plan.tokens, plan.positions, plan.logit_indices)
        )
        inputs = torch.from_numpy(tokens), torch.from_numpy(positions), torch.from_numpy(wanted)
        recorder = self._recorder(
            self._workspace, (*self._lasting, *inputs), self._library.replayed_arguments
        )
        with recorder.recording():
            logits = self._loaded.logits(*inputs)
        if not self._workspace.holds(logits):
            raise CannotReplay("the logits are not ours")
        return RecordedStep(tokens, positions, inputs, logits[: plan.token_count], recorder.calls)

    def _compare(self, step: RecordedStep) -> None:
        """Other tokens at other places, computed in both ways, and nothing left of the recording: what was
        not recorded would be missing. The keys and values that stay are replaced by the step that comes
        next."""
        step.tokens[:] = (step.tokens + 1) % self._loaded.vocab_size
        step.positions[:] -= 1
        expected = self._loaded.logits(*step.inputs)[: len(step.logits)].contiguous()
        self._workspace.spoil()
        complete = replay_calls(self._library, step)
        if not complete or not torch.equal(step.logits.view(torch.uint8), expected.view(torch.uint8)):
            raise CannotReplay("a replayed step has another answer")


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    """Raises CannotReplay and MemoryError only."""
    try:
        yield
    except (CannotReplay, MemoryError):
        raise
    except Exception as error:  # of names that torch does not promise
        raise CannotReplay(f"{type(error).__name__}: {error}") from error
