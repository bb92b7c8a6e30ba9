"""The length of steps, learned and kept; on a device whose steps take what the test says."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.engine.brain import SIZES, ask
from support.engine.counting import Rig

from millstream_worker.engine.brain.running.step_time import LEAST_TOKENS, StepTimeModel
from millstream_worker.engine.brain.scheduler import Scheduler
from millstream_worker.engine.brain.scheduler_config import SchedulerConfig


def run(model: StepTimeModel, steps: int, seconds: Callable[[int], float], start: float = 0.0) -> list[int]:
    """Prompt tokens of so many steps that compute as much as they may, one settled after the other."""
    now, chunks = start, []
    for _ in range(steps):
        chunks.append(model.prompt_tokens())
        model.planned(chunks[-1], now)
        now += seconds(chunks[-1])
        model.settled(now)
    return chunks


def test_a_step_without_a_target_takes_the_most_prompt_tokens() -> None:
    assert run(StepTimeModel(0.0, 512), 9, lambda tokens: 0.01 * tokens) == [512] * 9


@settings(max_examples=60)
@given(
    base_s=st.floats(0.0, 0.08),
    token_s=st.floats(1e-6, 1e-3),
    noise=st.floats(0.0, 0.1),
    seed=st.integers(0, 99),
)
def test_steps_come_to_take_the_target(base_s: float, token_s: float, noise: float, seed: int) -> None:
    """Or as near to it as the smallest and the largest chunk allow, on any device, steady or not."""
    random = np.random.default_rng(seed)
    model = StepTimeModel(0.1, 4096)
    chunks = run(model, 60, lambda n: (base_s + token_s * n) * (1 + noise * random.uniform(-1, 1)))
    right = min(max((0.1 - base_s) / token_s, LEAST_TOKENS), 4096)
    assert np.mean(chunks[-10:]) == pytest.approx(right, rel=0.1 + 2 * noise, abs=2)


def test_it_follows_a_load_that_changes() -> None:
    model = StepTimeModel(0.1, 4096)
    run(model, 40, lambda n: 0.01 + 1e-4 * n)
    assert run(model, 40, lambda n: 0.06 + 1e-4 * n, 100.0)[-1] == pytest.approx(400, rel=0.1)
    back = run(model, 40, lambda n: 0.01 + 1e-4 * n, 200.0)
    assert back[-1] == pytest.approx(900, rel=0.1)
    assert 0.01 + 1e-4 * max(back) < 1.5 * 0.1


def test_a_pause_is_not_the_models() -> None:
    model = StepTimeModel(0.1, 4096)
    run(model, 40, lambda n: 0.01 + 1e-4 * n)
    run(model, 1, lambda n: 60.0, 100.0)
    assert run(model, 20, lambda n: 0.01 + 1e-4 * n, 200.0)[-1] == pytest.approx(900, rel=0.1)


def test_what_was_learned_outlasts_steps_without_prompts() -> None:
    model = StepTimeModel(0.1, 4096)
    run(model, 40, lambda n: 0.01 + 1e-4 * n)
    for step in range(200):
        model.planned(0, 100.0 + step)
        model.settled(100.01 + step)
    assert run(model, 5, lambda n: 0.01 + 1e-4 * n, 400.0) == pytest.approx([900] * 5, rel=0.05)


def test_nothing_is_tried_that_is_far_from_what_was_seen() -> None:
    """Nothing is known of prompts while only decode rows ran: the first chunk is short, and they grow."""
    model = StepTimeModel(10.0, 4096)
    for _ in range(20):
        model.planned(0, 0.0)
        model.settled(0.001)
    chunks = run(model, 20, lambda n: 0.001 + 1e-6 * n, 1.0)
    assert chunks[0] == LEAST_TOKENS * 1.5
    assert all(later <= 1.5 * chunk for chunk, later in pairwise(chunks))
    assert chunks[-1] == 4096


def test_decode_rows_that_alone_take_longer_do_not_stop_prompts() -> None:
    assert run(StepTimeModel(0.1, 4096), 30, lambda n: 0.5 + 1e-4 * n)[1:] == [LEAST_TOKENS] * 29
    assert run(StepTimeModel(0.1, 20), 5, lambda n: 0.5) == [20] * 5


def test_a_step_that_waits_for_the_one_before_counts_from_there() -> None:
    model = StepTimeModel(0.1, 4096)
    for step in range(30):  # planned one ahead: half of the time from plan to settle is the other step's
        model.planned(100, float(step))
        if step:
            model.settled(step + 1.0)
    assert model.token_s == pytest.approx(0.01, rel=0.2)


def device(**sizes: object) -> Rig:
    """One that takes 10 ms for a step, and 0.1 ms for each token in it."""
    roomy = {"blocks": 4096, "context_length": 9000, "max_step_tokens": 2000}
    config = SchedulerConfig(**SIZES | roomy | sizes)  # type: ignore[arg-type]
    return Rig(Scheduler(config), lambda plan: 0.01 + 1e-4 * plan.token_count)


@pytest.mark.parametrize(
    ("priority", "fields", "bounded"),
    [
        (0, {}, True),
        (1, {}, False),
        (1, {"step_time_for_all": True}, True),
        (0, {"step_time_target_s": 0.0}, False),
    ],
)
def test_prompts_are_cut_while_interactive_rows_decode(
    priority: int, fields: dict[str, object], bounded: bool
) -> None:
    rig = device(**{"step_time_target_s": 0.05} | fields)
    rig.add(ask(1, 40, max_tokens=60, priority=priority))
    rig.steps(5)
    rig.add(ask(2, 8000, max_tokens=2))
    rig.steps(16)
    mixed = [plan.token_count for plan in rig.plans[5:]]
    if bounded:
        assert max(mixed) <= 420
        assert sum(mixed[4:]) / len(mixed[4:]) == pytest.approx(400, rel=0.05)  # 10 + 40 ms
    else:
        assert mixed[:4] == [2000] * 4


def test_without_decode_rows_prompts_are_computed_at_full_length() -> None:
    rig = device(step_time_target_s=0.02)
    rig.add(ask(1, 8000, priority=0))
    rig.steps(4)
    assert [plan.token_count for plan in rig.plans] == [2000] * 4
