"""Runs plans: forward over the packed step, then one token per wanted logit. Knows rows as batch slots only.
It marks its progress: a layer attended, or some calls made again, logits there, tokens drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

import numpy as np
import torch

from millstream_worker.engine.brain.plan import Drawn, Plan
from millstream_worker.engine.runner.attention.prefill_choice import choose_prefill
from millstream_worker.engine.runner.device_clock import DeviceClock, Span, clock_of
from millstream_worker.engine.runner.graphs.recorder import Recorder
from millstream_worker.engine.runner.graphs.recording import record
from millstream_worker.engine.runner.graphs.steps import Limits, StepGraphs
from millstream_worker.engine.runner.host_swap import HostSwap
from millstream_worker.engine.runner.inputs import drawn_in, token_ids
from millstream_worker.engine.runner.model import LoadedModel, connect, forward, reconnect
from millstream_worker.engine.runner.replay.steps import NotedSteps, refused
from millstream_worker.engine.runner.replay.tape import CannotReplay
from millstream_worker.engine.runner.sampler import DrawnTensors, Sampler
from millstream_worker.engine.runner.storage import KVStorage
from millstream_worker.engine.runner.transfer import together

Mark = Callable[[], None]


@dataclass(slots=True, eq=False)
class Launched:
    """A step on its way: it has logits after `forward`, and tokens instead after `sample`."""

    plan: Plan
    span: Span | None
    logits: torch.Tensor | None  # [L, vocabulary]; the next step may use their memory
    drawn: DrawnTensors | Drawn | None = None


class Runner:
    """One model over one storage. Steps are settled in the order they were launched in, at once or later."""

    def __init__(
        self,
        loaded: LoadedModel,
        storage: KVStorage,
        sampler: Sampler,
        mark: Mark = lambda: None,
        swap: HostSwap | None = None,
    ) -> None:
        self._loaded = loaded
        self._attention = connect(loaded, storage, mark)
        self._sampler = sampler
        self._mark = mark
        self._swap = swap
        self._replayed: StepGraphs | NotedSteps | None = None
        self.clock: DeviceClock | None = clock_of(loaded.device)

    @torch.inference_mode()
    def choose_prefill(self, report: Callable[[str], None]) -> None:
        """Where the device has several ways to prefill, find out the fastest; before the first step."""
        choose_prefill(self._attention.backend, report)

    def record(self, recorder: Recorder, limits: Limits, report: Callable[[str], None]) -> None:
        """Record the steps that may come, before the first of them, to replay them from then on. Raises
        `CannotRecord`: then they are computed as before."""
        self._replayed = record(
            self._loaded, self._attention, self._sampler.last_tokens, recorder, limits, report, self._mark
        )

    def note_steps(self, report: Callable[[str], None]) -> None:
        """On the CPU, once the model is compiled: note the calls of a decode step when its size comes for the
        third time, and make them again from then on."""
        try:
            self._replayed = NotedSteps(self._loaded, self._attention, report, self._mark)
        except CannotReplay as error:
            report(refused(error))

    def reconnect(self) -> None:
        """After something else, a compilation, has had the model's attention modules."""
        reconnect(self._loaded, self._attention, self._mark)

    @torch.inference_mode()
    def forward(self, plan: Plan) -> Launched:
        """Start a step of at least one token; on the CPU its logits are there on return. Its keys and values
        are in the storage afterwards."""
        with _LackOfMemory():
            for load in plan.loads:
                self._sampler.load(load)
            span = self.clock.start() if self.clock else None
            if self._swap is not None:
                self._swap.apply(plan)
            logits = self._logits(plan)
        self._mark()
        return Launched(plan, span, logits)

    @torch.inference_mode()
    def sample(self, launched: Launched, masks: torch.Tensor | None = None) -> None:
        """Start to sample the step's tokens, before the next `forward`. `masks` [L, vocabulary], on the
        model's device: the tokens that each row of the logits may become; None: all."""
        logits, launched.logits = launched.logits, None
        assert logits is not None, "a step is sampled once"
        with _LackOfMemory():
            if masks is not None:
                logits = logits.masked_fill(~masks, -torch.inf)
            launched.drawn = self._sampler.draw(logits, launched.plan)
            if launched.span is not None:
                launched.span.ended.record()

    def launch(self, plan: Plan) -> Launched:
        """`forward` and `sample` in turn."""
        launched = self.forward(plan)
        self.sample(launched)
        return launched

    def settle(self, launched: Launched) -> Drawn:
        """The tokens of a sampled step; waits for them."""
        assert launched.drawn is not None, "a step is sampled before it is settled"
        with _LackOfMemory():
            drawn = self._sampler.collect(launched.drawn)
            if launched.span is not None and self.clock is not None:
                launched.span.ended.synchronize()
                self.clock.settle(launched.span)
        self._mark()
        return drawn

    def _logits(self, plan: Plan) -> torch.Tensor:
        if self._replayed is not None:
            logits = self._replayed.run(plan)
            if logits is not None:
                return logits
        self._attention.begin(plan)
        arrays = [array.astype(np.int64) for array in (plan.tokens, plan.positions, plan.logit_indices)]
        if plan.from_device.any():
            arrays.append(drawn_in(plan))
        tokens, positions, wanted, *sources = together(arrays, self._loaded.device)
        if sources:
            tokens = token_ids(tokens, sources[0], self._sampler.last_tokens)
        return forward(self._loaded.model, tokens, positions, wanted)


class _LackOfMemory:
    """A device's, or torch's own, lack of memory comes out as everybody's. Entered three times a step: a
    generator would take several times as long."""

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, torch.OutOfMemoryError):
            raise MemoryError(str(error)) from error
        if isinstance(error, RuntimeError) and "can't allocate memory" in str(error):  # the CPU's allocator
            raise MemoryError(str(error)) from error
