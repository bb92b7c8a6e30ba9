"""How many draft tokens are verified, on simulated devices: steps take what a curve says, rows write given
texts. The rule's rate is near the better of no drafts and all likely ones, whatever device and texts.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
from support.engine.brain import SIZES

from millstream_worker.engine.brain.batch.plan import Plan, Sampled
from millstream_worker.engine.brain.scheduler import Scheduler
from millstream_worker.engine.brain.scheduler_config import SchedulerConfig
from millstream_worker.engine.protocol.request import EngineRequest, SamplingSpec

Text = tuple[tuple[int, ...], list[int]]  # prompt, output

# Milliseconds of a step by its tokens: as measured for a model of 135M with AMX, AVX-512 and AVX2.
CURVES = {
    "amx": {1: 12.8, 8: 15.5, 32: 25.0, 64: 36.0},
    "avx512": {1: 9.4, 8: 12.3, 32: 31.4, 64: 55.0},
    "avx2": {1: 19.0, 5: 30.0, 9: 42.0, 32: 119.0, 40: 160.0, 64: 250.0},
}
PROMPT_TOKEN_MS = 1.0
TURNS, WARM = 5, 2
GREEDY = SamplingSpec(temperature=0.0)


def copies(wrong: float) -> list[Text]:
    """Outputs that repeat their prompts, but for this share of tokens."""
    draw, texts = random.Random(1), []
    for length in (20 + 90 * row % 41 for row in range(64)):
        prompt = tuple(draw.randrange(10, 20_000) for _ in range(length))
        output = [draw.randrange(10, 20_000) if draw.random() < wrong else token for token in prompt]
        texts.append((prompt, output))
    return texts


class SimulatedDevice:
    """A scheduler whose steps take what the curve says, with noise, and give the texts' tokens."""

    def __init__(self, mode: str, curve: dict[int, float]) -> None:
        sizes = SIZES | {"max_rows": 64, "max_step_tokens": 2048, "block_size": 16, "blocks": 2000}
        self._scheduler = Scheduler(SchedulerConfig(**sizes | {"speculate": mode, "context_length": 400}))
        self._curve = curve
        self._draw = random.Random(2)
        self._now = 0.0

    def rate(self, texts: Sequence[Text]) -> float:
        """Output tokens per second, after some turns."""
        outputs = dict(texts)
        tokens, began = 0, 0.0
        for turn in range(TURNS):
            if turn == WARM:
                tokens, began = 0, self._now
            for handle, (prompt, output) in enumerate(texts):
                request = EngineRequest(handle, prompt, len(output), GREEDY, salt=str(turn))
                assert self._scheduler.add(request, self._now) is None
            tokens += self._run(outputs)
        return tokens / (self._now - began)

    def _run(self, outputs: dict[tuple[int, ...], list[int]]) -> int:
        by_slot: dict[int, list[int]] = {}
        tokens = 0
        while not self._scheduler.idle:
            plan = self._scheduler.plan(self._now)
            assert plan is not None
            by_slot |= {load.slot: outputs[load.prompt] for load in plan.loads}
            slots = plan.row_slots[plan.logit_segments].tolist()
            places = zip(slots, plan.output_indices.tolist(), strict=True)
            sampled = [by_slot[slot][min(place, len(by_slot[slot]) - 1)] for slot, place in places]
            self._now += self._seconds(plan)
            step = self._scheduler.settle(Sampled(np.array(sampled, np.int32), {}), self._now)
            tokens += len(step.tokens)
        return tokens

    def _seconds(self, plan: Plan) -> float:
        ms = float(np.interp(plan.decodes, list(self._curve), list(self._curve.values())))
        ms += PROMPT_TOKEN_MS * (plan.token_count - plan.decodes)
        return ms * self._draw.lognormvariate(0, 0.05) / 1e3


@pytest.mark.parametrize(
    ("curve", "rows", "wrong"),
    [
        ("avx2", (1, 8, 32), (0.02, 0.3)),
        *(
            pytest.param(curve, (1, 8, 32, 64), (0.0, 0.02, 0.1, 0.3, 1.0), marks=pytest.mark.slow)
            for curve in CURVES
        ),
    ],
)
def test_the_rule_is_near_the_better_of_none_and_all(
    curve: str, rows: tuple[int, ...], wrong: tuple[float, ...]
) -> None:
    for share in wrong:
        for count in rows:
            off, always, auto = rates(curve, copies(share)[:count], "off", "always", "auto")
            assert auto >= 0.95 * max(off, always), f"{share:.0%} wrong, {count} rows: {off} {always} {auto}"


@pytest.mark.parametrize(
    ("curve", "rows", "factor"), [("amx", 1, 2.0), ("amx", 32, 1.1), ("avx512", 1, 1.8), ("avx2", 1, 1.4)]
)
def test_drafts_pay_where_outputs_repeat_their_prompts(curve: str, rows: int, factor: float) -> None:
    off, auto = rates(curve, copies(0.02)[:rows], "off", "auto")
    assert auto > factor * off


def rates(curve: str, texts: Sequence[Text], *modes: str) -> list[float]:
    return [SimulatedDevice(mode, CURVES[curve]).rate(texts) for mode in modes]
