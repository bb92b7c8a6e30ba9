"""Requests through the real scheduler and the real runner, without processes or sockets."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from millstream_worker.engine.brain.batch.plan import Plan
from millstream_worker.engine.brain.batch.shared_prefixes import SharingCosts
from millstream_worker.engine.brain.scheduler import Scheduler
from millstream_worker.engine.brain.scheduler_config import SchedulerConfig
from millstream_worker.engine.protocol.outputs import EngineStats
from millstream_worker.engine.protocol.request import EngineRequest
from millstream_worker.engine.runner.forward import Eager, storage_of_states
from millstream_worker.engine.runner.kv.storage import KVStorage
from millstream_worker.engine.runner.model.load import LoadedModel
from millstream_worker.engine.runner.runner import Launched, Runner
from millstream_worker.engine.runner.sampling.chooser import Chooser
from millstream_worker.engine.runner.sampling.numpy_chooser import NumpyChooser
from millstream_worker.engine.runner.sampling.sampler import Sampler
from millstream_worker.engine.runner.sampling.torch_chooser import TorchChooser
from millstream_worker.engine.runner.states.slot_segments import MOST_DRAFTS

STATE_PLACES = 6  # for checkpoints of recurrent state


@dataclass
class Served:
    stats: EngineStats
    tokens: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    logprobs: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    reasons: dict[int, str] = field(default_factory=dict)


def runner_of(
    loaded: LoadedModel, *, blocks: int, block_size: int, max_rows: int = 8
) -> tuple[Runner, KVStorage]:
    storage = KVStorage(loaded.layer_specs, blocks, block_size, loaded.dtype, loaded.device)
    sampler = Sampler(loaded.vocab_size, max_rows, torch.device(loaded.device), _chooser(loaded))
    states = storage_of_states(loaded, max_rows, STATE_PLACES, MOST_DRAFTS)
    model = Eager(loaded, storage, sampler.last_tokens, state_storage=states)
    return Runner(model, sampler, states=states), storage


def _chooser(loaded: LoadedModel) -> Chooser:
    """Of no kernels of ours."""
    return NumpyChooser() if loaded.device.type == "cpu" else TorchChooser()


def eager_of(runner: Runner) -> Eager:
    assert isinstance(runner.model, Eager)
    return runner.model


def launch(runner: Any, plan: Plan) -> Any:
    """Start a step and the sampling of its tokens."""
    launched = runner.forward(plan)
    runner.sample(launched)
    return launched


def logits_of(runner: Runner, plan: Plan) -> torch.Tensor:
    """Logits [L, vocabulary] of a step, float32; they outlast the next step."""
    logits = runner.forward(plan).logits
    assert logits is not None
    return logits.to(torch.float32, copy=True)


def serve(
    loaded: LoadedModel,
    arrivals: Sequence[tuple[int, EngineRequest]],
    *,
    blocks: int,
    block_size: int = 4,
    max_rows: int = 8,
    step_tokens: int = 24,
    pipeline_depth: int = 0,
    sharing: SharingCosts | None = None,
    speculate: str = "off",
    prepare: Callable[[Runner], None] = lambda runner: None,
) -> Served:
    """Run requests to their end; each arrives before the plan of the given number. The pool is audited
    throughout."""
    runner, _ = runner_of(loaded, blocks=blocks, block_size=block_size, max_rows=max_rows)
    prepare(runner)
    scheduler = Scheduler(
        SchedulerConfig(
            max_rows=max_rows,
            max_step_tokens=step_tokens,
            block_size=block_size,
            blocks=blocks,
            context_length=loaded.context_length,
            prefix_cache=True,
            hash_seed=b"test",
            pipeline_depth=pipeline_depth,
            sharing=sharing,
            speculate=speculate,
            most_drafts=MOST_DRAFTS,
            state_places=STATE_PLACES if loaded.state_specs else 0,
        )
    )
    served = Served(scheduler.stats())
    coming = deque(sorted(arrivals, key=lambda arrival: arrival[0]))
    flying: deque[Launched] = deque()
    now = 0.0
    while coming or not scheduler.idle:
        while coming and (coming[0][0] <= now or scheduler.idle):
            assert scheduler.add(coming.popleft()[1], now) is None
        plan = scheduler.plan(now)
        if plan is not None:
            flying.append(launch(runner, plan))
        if flying and (plan is None or len(flying) > pipeline_depth):
            settled = scheduler.settle(runner.settle(flying.popleft()), now)
            for handle, token in zip(settled.handles, settled.tokens, strict=True):
                served.tokens[handle].append(token)
            for index, logprob, _, _ in settled.logprobs:
                served.logprobs[settled.handles[index]].append(logprob)
            served.reasons.update(settled.finished)
        scheduler.check()
        now += 1.0
    served.stats = scheduler.stats()
    return served
