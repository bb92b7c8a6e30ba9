"""Runs plans: forward over the packed step, then one token per wanted logit. Knows rows as batch slots only.
Reports progress after each layer, after the logits and after sampling.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import TracebackType

import torch
from torch import Tensor

from millstream_worker.engine.brain.batch.plan import Plan, Sampled, TokenMasks
from millstream_worker.engine.runner.device.free_cores import FreeCores
from millstream_worker.engine.runner.forward import Forward
from millstream_worker.engine.runner.kv.host_swap import HostSwap
from millstream_worker.engine.runner.sampling.sampled_tensors import SampledTensors
from millstream_worker.engine.runner.sampling.sampler import Sampler
from millstream_worker.engine.runner.states.state_storage import StateStorage
from millstream_worker.engine.runner.vision.image_steps import ImageSteps

Mark = Callable[[], None]


@dataclass(slots=True, eq=False)
class Launched:
    """A step in flight: `forward` sets its logits, `sample` replaces them by tokens."""

    plan: Plan
    logits: Tensor | None  # [L, vocabulary]; the next step may use their memory
    encode_s: float = 0.0  # of the images before the step
    sampled: SampledTensors | Sampled | None = None


@dataclass(slots=True, eq=False)
class Runner:
    """Steps are settled in the order they were sampled in, at once or later. Between two steps `model` may be
    given another form. `cores`: chooses the number of threads, where steps are computed on the CPU. `states`:
    of models with recurrent ones. `images`: of models that read them."""

    model: Forward
    sampler: Sampler
    mark: Mark = lambda: None
    swap: HostSwap | None = None
    cores: FreeCores | None = None
    states: StateStorage | None = None
    images: ImageSteps | None = None

    @torch.inference_mode()
    def forward(self, plan: Plan) -> Launched:
        """Start a step of at least one token; on the CPU its logits are there on return. Its keys and values
        are in the storage afterwards."""
        with _LackOfMemory():
            for load in plan.loads:
                self.sampler.load(load)
            encode_s = self.images.encode(plan) if self.images is not None else 0.0
            if self.swap is not None:
                self.swap.apply(plan)
            if self.states is not None:
                self.states.begin(plan)
            logits = self._run(plan)
            if self.states is not None:
                self.states.end(plan)
        self.mark()
        return Launched(plan, logits, encode_s)

    def _run(self, plan: Plan) -> Tensor:
        model: Forward | ImageSteps = self.model
        if self.images is not None and (plan.images or plan.has_axes):
            model = self.images
        if self.cores is None:
            return model.run(plan)
        self.cores.begin_step()
        logits = model.run(plan)
        self.cores.end_step()
        return logits

    @torch.inference_mode()
    def sample(self, launched: Launched, masks: TokenMasks | None = None) -> None:
        """Start to sample the step's tokens, before the next `forward`: those of `masks`; None: any."""
        logits, launched.logits = launched.logits, None
        assert logits is not None, "a step is sampled once"
        with _LackOfMemory():
            launched.sampled = self.sampler.sample(logits, launched.plan, masks)

    def settle(self, launched: Launched) -> Sampled:
        """The tokens of a sampled step; waits for them."""
        assert launched.sampled is not None, "a step is sampled before it is settled"
        with _LackOfMemory():
            sampled = self.sampler.collect(launched.sampled)
        self.mark()
        return replace(sampled, encode_s=launched.encode_s) if launched.encode_s else sampled


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
