"""Turns of an engine that drafts, or does not, on prompts that no turn finds in the cache."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from ops.bench.speculation.texts import Prompt

from millstream_worker.engine.assembly import build
from millstream_worker.engine.brain.batch.plan import Plan, Sampled, TokenMasks
from millstream_worker.engine.engine import Engine
from millstream_worker.engine.protocol.config import EngineConfig
from millstream_worker.engine.protocol.request import EngineRequest, SamplingSpec

MODES = ("off", "always", "auto")
TAIL = 20  # the last of so many rows are a batch's tail


@dataclass(slots=True)
class Turn:
    seconds: float
    tail_s: float  # with at most a 20th of the rows left
    outputs: list[list[int]] = field(default_factory=list)
    drafted: int = 0
    accepted: int = 0

    @property
    def rate(self) -> float:
        """Output tokens per second."""
        return sum(map(len, self.outputs)) / self.seconds


class Turns:
    """An engine; each turn has a salt of its own. With `played`, outputs by prompt, it computes as always,
    and its draws are replaced by those tokens: random weights write nothing that is worth drafting.
    """

    def __init__(self, config: EngineConfig, played: Mapping[Prompt, list[int]] | None = None) -> None:
        self._engine: Engine[Any]
        self._engine, self.info = build(config, lambda message: None)
        self._played = played
        if played is not None:
            self._engine.runner = Player(self._engine.runner, played)
        self._turns = count()

    def run(self, prompts: list[Prompt], tokens: int) -> Turn:
        """Up to `tokens` of each answer."""
        engine, salt = self._engine, str(next(self._turns))
        outputs: list[list[int]] = [[] for _ in prompts]
        before, start = engine.report().stats, time.perf_counter()
        for handle, prompt in enumerate(prompts):
            assert engine.add(self._request(handle, prompt, tokens, salt)) is None
        left, tail = len(prompts), start
        while not engine.idle:
            step = engine.step()
            assert step is not None
            for handle, token in zip(step.handles, step.tokens, strict=True):
                outputs[handle].append(token)
            if left > len(prompts) // TAIL:
                tail = time.perf_counter()
            left -= len(step.finished)
        end, after = time.perf_counter(), engine.report().stats
        return Turn(
            end - start,
            end - tail,
            outputs,
            after.drafted_total - before.drafted_total,
            after.accepted_total - before.accepted_total,
        )

    def _request(self, handle: int, prompt: Prompt, tokens: int, salt: str) -> EngineRequest:
        plain = SamplingSpec(temperature=0.0)
        if self._played is None:
            return EngineRequest(handle, prompt, tokens, replace(plain, end_ids=self.info.eos_ids), salt=salt)
        return EngineRequest(handle, prompt, min(len(self._played[prompt]), tokens), plain, salt=salt)


class Player:
    """A runner whose samples are replaced by given outputs, of the CPU, where a step is settled before the
    next is planned."""

    def __init__(self, runner: Any, played: Mapping[Prompt, list[int]]) -> None:
        self._runner = runner
        self._played = played
        self._by_slot: dict[int, list[int]] = {}

    def forward(self, plan: Plan) -> Any:
        for load in plan.loads:
            self._by_slot[load.slot] = self._played[load.prompt]
        return self._runner.forward(plan)

    def sample(self, launched: Any, masks: TokenMasks | None) -> None:
        self._runner.sample(launched, masks)

    def settle(self, launched: Any) -> Sampled:
        plan: Plan = launched.plan
        sampled: Sampled = self._runner.settle(launched)
        slots = plan.row_slots[plan.logit_segments].tolist()
        places = zip(slots, plan.output_indices.tolist(), strict=True)
        for index, (slot, place) in enumerate(places):
            output = self._by_slot[slot]
            sampled.tokens[index] = output[min(place, len(output) - 1)]
        return sampled
