"""Records the calls of short steps, and replays them in later steps of as many tokens and logits.

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
from millstream_worker.engine.runner.model.model_heads import FEWEST
from millstream_worker.engine.runner.native.library import Library
from millstream_worker.engine.runner.replay.call_recorder import CallRecorder, CannotReplay
from millstream_worker.engine.runner.replay.workspace import Workspace
from millstream_worker.engine.runner.self_check.findings import short
from millstream_worker.engine.runner.states.native_states import NativeStates

MOST_LOGITS = 64  # with more of them a step's arithmetic hides the calls
MOST_TOKENS = 96  # so many rows, some with several tokens that their grammars force
_TOKEN_BYTES = 2**19  # of what a step keeps in between, beside the logits
_ROUNDED = 4  # tokens, and logits, of steps that do more than decode: they come in many sizes
_PASSED = 2  # steps of a size before one is recorded, as some come once
_MARKED = 512  # calls, the layers of most models, between which progress is marked and the threads' team ends
_OFF = "CPU replay is off"  # in the log

Key = tuple[str, tuple[int, int]]  # a step's head, and its size


@dataclass(frozen=True, slots=True, eq=False)
class RecordedStep:
    """A step of some size. It holds where its inputs and answer lie, and its calls."""

    tokens: NDArray[np.int64]  # [T]
    positions: NDArray[np.int64]  # [T]
    wanted: NDArray[np.int64]  # [L] the places that the head answers for
    answer: Tensor  # [L, size]
    calls: NDArray[np.int64]

    @property
    def inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the inputs as the model takes them."""
        return torch.from_numpy(self.tokens), torch.from_numpy(self.positions), torch.from_numpy(self.wanted)

    @property
    def functions(self) -> tuple[int, ...]:
        return tuple(self.calls[:, 0].tolist())


def replay_calls(library: Library, step: RecordedStep, mark: Callable[[], None] = lambda: None) -> bool:
    """Computes the step, of the inputs that are in their places; `mark` is called on the way. False where a
    call failed: called from Python it says why."""
    begin, size, threads = step.calls.ctypes.data, step.calls.strides[0], torch.get_num_threads()
    for first in range(0, len(step.calls), _MARKED):
        if not library.replay(begin + first * size, min(_MARKED, len(step.calls) - first), threads):
            return False
        mark()
    return True


def workspace_bytes(vocab_size: int) -> int:
    """Returns the bytes that recorded steps may use for what they compute in between."""
    return MOST_LOGITS * 4 * vocab_size + MOST_TOKENS * _TOKEN_BYTES


def recorded_size(plan: Plan) -> tuple[int, int]:
    """Returns tokens and logits of the recorded step that computes this one: as many, or some more."""
    tokens, logits = plan.token_count, len(plan.logit_indices)
    unit = 1 if tokens == logits else _ROUNDED
    rounded = (-(-max(FEWEST, count) // unit) * unit for count in (tokens, logits))
    return tuple(rounded)  # type: ignore[return-value]


def replayed(eager: Eager, report: Callable[[str], None]) -> Forward:
    """Returns the form that a compiled model gets on the CPU."""
    try:
        form = CpuReplay(eager, report)
    except CannotReplay as error:
        report(f"{_OFF}: {error}")
        return eager
    report("short steps are recorded and replayed")
    return form


class CpuReplay:
    """Replays steps of few tokens on the CPU, for a compiled model. Raises CannotReplay.

    The third step of a size is computed and recorded. The fourth is replayed and computed, and the answers
    are compared, unless those of a size with the same functions were: no step takes longer than two. What is
    computed twice moves recurrent states once.
    """

    def __init__(
        self, eager: Eager, report: Callable[[str], None], recorder: type[CallRecorder] = CallRecorder
    ) -> None:
        loaded, backend = eager.loaded, eager.attention
        if not isinstance(backend, NativeAttention) or not backend.library.replayed_arguments:
            raise CannotReplay("attention is not computed by our library")
        if not isinstance(eager.states, NativeStates | None):
            raise CannotReplay("recurrent states are not advanced by our library")
        self.eager = eager
        self._loaded = loaded
        self._states = eager.states
        self._library = backend.library
        self._report = report
        self._recorder = recorder
        self._mark = eager.mark
        self._most_tokens = MOST_TOKENS
        self._threads = torch.get_num_threads()
        try:
            self._workspace = Workspace(workspace_bytes(loaded.vocab_size))
        except MemoryError as error:
            raise CannotReplay(str(error)) from error
        self._lasting = [*loaded.model.parameters(), *loaded.model.buffers()]
        self._seen: Counter[Key] = Counter()
        self._steps: dict[Key, RecordedStep] = {}
        self._compared: set[tuple[int, ...]] = set()  # functions of steps that answered what they should
        self._unproved: set[Key] = set()  # of recorded steps

    def run(self, plan: Plan) -> Tensor:
        answer = self.replay(plan)
        return self.eager.run(plan) if answer is None else answer

    def replay(self, plan: Plan) -> Tensor | None:
        """Returns the answer [L, size] of the plan's head, in place until the next step; None for a step that
        is not of ours."""
        size = recorded_size(plan)
        if size[0] > self._most_tokens or size[1] > MOST_LOGITS or plan.from_device.any():
            return None
        key = plan.head, size
        step = self._steps.get(key)
        if step is None:
            self._seen[key] += 1
            if self._seen[key] > _PASSED:
                self._record(plan, size)
            return None
        if key in self._unproved:
            return self._prove(plan, step)
        return self._replay(plan, step)

    def _replay(self, plan: Plan, step: RecordedStep) -> Tensor | None:
        self._insert(plan, step)
        complete = replay_calls(self._library, step, self._mark)
        if not complete and self._states is not None:
            raise RuntimeError("a replayed step failed, and has moved some recurrent states")
        return step.answer[: len(plan.logit_indices)] if complete else None

    def _insert(self, plan: Plan, step: RecordedStep) -> None:
        """Fills in the plan's inputs. Tokens beyond them keep an earlier step's: valid, and of no effect. The
        head answers for none of these: they may be any numbers."""
        tokens, logits = plan.token_count, len(plan.logit_indices)
        self.eager.begin(plan)
        step.tokens[:tokens], step.positions[:tokens] = plan.tokens, plan.model_positions
        step.wanted[:logits] = plan.logit_indices
        step.wanted[logits:] = plan.logit_indices[-1] if logits else 0

    def _record(self, plan: Plan, size: tuple[int, int]) -> None:
        self.eager.begin(plan)
        try:
            with self._states_kept():
                step = self._recorded(plan, size)
        except MemoryError:
            self._most_tokens = size[0] - 1  # smaller ones do with less
            return
        except Exception as error:  # noqa: BLE001 - CannotReplay, or of names that torch does not promise
            self._end(error)
            return
        key = plan.head, size
        self._steps[key] = step
        if step.functions not in self._compared:
            self._unproved.add(key)

    def _states_kept(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if self._states is None else self._states.kept()

    def _prove(self, plan: Plan, step: RecordedStep) -> Tensor | None:
        """Replays the step, and computes it. The recorded inputs again would prove little."""
        recorded = step.tokens.tobytes(), step.positions.tobytes()
        self._insert(plan, step)
        if recorded == (step.tokens.tobytes(), step.positions.tobytes()):
            return None
        with self._states_kept():
            replayed = self._on_spoilt_memory(step)
        with _threads(self._threads):  # fewer would round otherwise
            expected = self._loaded.heads(plan.head, *step.inputs).contiguous()
        if replayed is None or not torch.equal(replayed.view(torch.uint8), expected.view(torch.uint8)):
            self._end(CannotReplay("a replayed step has another answer"))
        else:
            self._compared.add(step.functions)
            self._unproved = {key for key in self._unproved if self._steps[key].functions != step.functions}
        return expected[: len(plan.logit_indices)]

    def _end(self, error: Exception) -> None:
        self._most_tokens = 0
        self._steps.clear()
        self._report(f"{_OFF}: {error if isinstance(error, CannotReplay) else short(error)}")

    def _recorded(self, plan: Plan, size: tuple[int, int]) -> RecordedStep:
        """Returns the recording. What is missing of its size repeats what there is."""
        tokens, positions = (
            np.resize(array, size[0]).astype(np.int64) for array in (plan.tokens, plan.model_positions)
        )
        wanted = np.resize(plan.logit_indices, size[1]).astype(np.int64)
        inputs = torch.from_numpy(tokens), torch.from_numpy(positions), torch.from_numpy(wanted)
        recorder = self._recorder(
            self._workspace, (*self._lasting, *inputs), self._library.replayed_arguments
        )
        with recorder.record(), _threads(self._threads):  # calls keep the number
            answer = self._loaded.heads(plan.head, *inputs)
        if not self._workspace.holds(answer):
            raise CannotReplay(f"the answer of {plan.head!r} is not in our memory")
        return RecordedStep(tokens, positions, wanted, answer, recorder.calls)

    def _on_spoilt_memory(self, step: RecordedStep) -> Tensor | None:
        """Returns the replayed answer, of which nothing is left from the recording: what was not recorded
        would be missing. None: a call failed."""
        self._workspace.spoil()
        return step.answer.clone() if replay_calls(self._library, step) else None


@contextlib.contextmanager
def _threads(number: int) -> Iterator[None]:
    """Sets torch's threads: others may take cores now, and none when the calls are made again."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
