"""What the loop sees: refusals, ends, chunks, choices, aborts, one step ahead."""

from __future__ import annotations

import pytest
from support.engine.brain import SIZES, ask, rig_of

from millstream_worker.engine.brain.scheduler import Scheduler
from millstream_worker.engine.brain.scheduler_config import SchedulerConfig
from millstream_worker.engine.protocol.outputs import Refused


@pytest.mark.parametrize(
    ("sizes", "prompt", "max_tokens", "field", "says"),
    [
        ({"context_length": 100}, 100, 4, "prompt",
         "the prompt has 100 tokens and needs room for one more, but the model's context length is 100; "
         "shorten it to 99 tokens or fewer"),
        ({"blocks": 5}, 25, 4, "prompt",
         "the prompt has 25 tokens and needs room for one more, but this worker's KV cache holds 20 tokens; "
         "shorten it to 19 tokens or fewer, or give the worker more KV memory"),
        ({}, 0, 4, "prompt", "the prompt has no tokens; give at least one"),
        ({}, 3, 0, "max_tokens", "must be at least 1 (got 0)"),
    ],
)  # fmt: skip
def test_what_can_never_run_is_refused(
    sizes: dict[str, int], prompt: int, max_tokens: int, field: str, says: str
) -> None:
    scheduler = Scheduler(SchedulerConfig(**SIZES | sizes))
    assert scheduler.add(ask(7, prompt, max_tokens), 0.0) == Refused(7, field, says)
    assert scheduler.idle


def test_a_size_of_nothing_and_another_depth_are_errors() -> None:
    for name in ("max_rows", "max_step_tokens", "block_size", "blocks", "context_length"):
        with pytest.raises(ValueError, match=rf"{name} must be at least 1 \(got 0\)"):
            SchedulerConfig(**SIZES | {name: 0})
    with pytest.raises(ValueError, match="pipeline_depth must be 0 or 1"):
        SchedulerConfig(**SIZES, pipeline_depth=2)


def test_decode_rows_do_not_wait_for_a_long_prefill() -> None:
    rig = rig_of(ask(1, 3, max_tokens=20), max_step_tokens=10)
    rig.step()
    rig.add(ask(2, 80))
    for _ in range(9):
        settled = rig.step()
        assert settled is not None
        assert settled.handles[0] == 1
    assert [plan.query_lens.tolist() for plan in rig.plans[1:10]] == [[1, 9]] * 8 + [[1, 8]]
    assert rig.output[2] != []
    rig.run()


def test_short_prompts_join_behind_the_end_of_a_long_one() -> None:
    rig = rig_of(ask(1, 14), ask(2, 3), ask(3, 8), max_step_tokens=10)
    rig.steps(2)
    assert [plan.query_lens.tolist() for plan in rig.plans] == [[10], [4, 3, 3]]
    rig.run()


def test_a_small_step_makes_rows_wait_and_not_alternate(depth: int) -> None:
    rig = rig_of(max_step_tokens=3, pipeline_depth=depth)
    rig.run(*(ask(handle, 2, max_tokens=12) for handle in range(7)))
    for handle in range(7):
        drawn = [step for step, settled in enumerate(rig.settled) if handle in settled.handles]
        assert drawn == list(range(drawn[0], drawn[0] + 12))


@pytest.mark.parametrize(
    ("outputs", "fields", "reason"),
    [((7, 8, 9, 10), {}, "length"), ((7, 8), {"end_ids": (8,)}, "stop"), ((7,), {"max_tokens": 1}, "length")],
)
def test_a_choice_added_at_its_end_is_reported_without_a_step(
    outputs: tuple[int, ...], fields: dict[str, object], reason: str
) -> None:
    rig = rig_of(ask(1, [5, 6], outputs=(outputs,), **fields))
    assert not rig.scheduler.idle
    assert rig.scheduler.take_finished() == [(1, reason)]
    assert rig.scheduler.take_finished() == []
    assert rig.scheduler.idle


def test_an_end_that_nobody_took_comes_with_the_next_step() -> None:
    rig = rig_of(ask(1, [5, 6], outputs=((7, 8, 9, 10),)), ask(2, 3))
    plan = rig.scheduler.plan(0.0)
    assert plan is not None
    assert rig.scheduler.settle(rig.model.launch(plan), 1.0).finished == [(1, "length")]


def test_an_aborted_end_is_not_reported() -> None:
    rig = rig_of(ask(1, [5, 6], outputs=((7, 8, 9, 10),)))
    rig.abort(1)
    assert rig.scheduler.take_finished() == []
    assert rig.scheduler.idle


def test_aborts_in_any_state_are_silent_and_free_everything(depth: int) -> None:
    rig = rig_of(pipeline_depth=depth, max_rows=2, max_step_tokens=8)
    rig.add(ask(1, 3, max_tokens=50), ask(2, 30, max_tokens=50), ask(3, 3, max_tokens=50), ask(4, 3))
    rig.step()  # 1 decodes, 2 is in its prefill, 3 and 4 wait
    rig.abort(1, 2, 3, 77)
    drawn = {handle: len(tokens) for handle, tokens in rig.output.items()}
    rig.abort(1)
    rig.run()
    assert drawn == {1: 1}
    assert list(rig.finished) == [4]


def test_what_is_aborted_in_flight_is_held_until_it_has_landed() -> None:
    rig = rig_of(ask(1, 9))
    plan = rig.scheduler.plan(0.0)
    assert plan is not None
    rig.abort(1)
    stats = rig.scheduler.stats()
    assert (stats.blocks_used, stats.rows_running, stats.free_rows) == (3, 0, 7)
    assert not rig.scheduler.idle
    settled = rig.scheduler.settle(rig.model.launch(plan), 1.0)
    assert (settled.handles, settled.tokens, settled.finished, settled.admitted) == ([], [], [], [])
    assert rig.scheduler.idle
    assert rig.scheduler.stats().blocks_used == 0


def test_a_handle_may_come_back_after_its_abort() -> None:
    rig = rig_of(ask(1, 9, max_tokens=50), pipeline_depth=1)
    rig.step()
    rig.abort(1)
    rig.output.clear()
    rig.run(ask(1, [5, 6]))
    assert rig.output == {1: [7, 8, 9, 10]}


def test_logprobs_keep_their_place_beside_dropped_draws() -> None:
    """Of four draws the second is dropped, and the last two asked for logprobs."""
    rig = rig_of(ask(1, [10]), ask(2, [20]), ask(3, [30], top_logprobs=0), ask(4, [40], top_logprobs=2))
    plan = rig.scheduler.plan(0.0)
    assert plan is not None
    rig.abort(2)
    settled = rig.scheduler.settle(rig.model.launch(plan), 1.0)
    assert (settled.handles, settled.tokens) == ([1, 3, 4], [11, 31, 41])
    assert settled.logprobs == [(1, -31.0, [], []), (2, -41.0, [41, 42], [-41.0, -42.0])]


def test_a_row_without_numbers_ends_alone(depth: int) -> None:
    rig = rig_of(pipeline_depth=depth)
    rig.model.non_finite = {13}
    rig.add(ask(1, [10], max_tokens=9), ask(2, [50], max_tokens=9))
    rig.expected.pop(1)
    rig.run()
    assert rig.output[1] == [11, 12]
    assert rig.finished == {1: "error", 2: "length"}


def test_rows_that_must_run_alone_do(depth: int) -> None:
    rig = rig_of(ask(1, 5, max_tokens=6), ask(2, 5, max_tokens=6), pipeline_depth=depth)
    rig.step()
    rig.run(ask(10, 5, alone=True, choices=2), ask(3, 5), ask(20, 5, alone=True), ask(4, 5, priority=0))
    together = {frozenset(settled.handles) for settled in rig.settled}
    assert together <= {frozenset(group) for group in ((), (1, 2), (1, 2, 4), (10, 11), (3,), (20,), (4,))}
    assert len(rig.finished) == 7


def test_a_request_runs_alone_to_the_end_of_its_last_choice(depth: int) -> None:
    rig = rig_of(ask(10, 5, max_tokens=8, alone=True, choices=2), ask(3, 5), pipeline_depth=depth)
    rig.step()
    rig.step()
    rig.abort(10)
    rig.run()
    assert {frozenset(settled.handles) for settled in rig.settled if 3 in settled.handles} == {frozenset([3])}
    assert list(rig.finished) == [11, 3]


def test_the_counters_of_a_quiet_run() -> None:
    rig = rig_of(ask(1, 9, max_tokens=3), ask(2, 3, max_tokens=5))
    step = rig.step()
    assert step is not None
    stats = step.stats
    assert (stats.rows_running, stats.rows_waiting, stats.free_rows) == (2, 0, 6)
    assert (stats.blocks_used, stats.blocks_free) == (4, 60)
    assert (stats.step_s, stats.step_tokens) == (1.0, 12)
    rig.run()
    stats = rig.scheduler.stats()
    assert (stats.prompt_computed_total, stats.output_total) == (12, 8)
    # 11 of 12 and 7 of 8 tokens were computed
    assert (stats.blocks_used, stats.blocks_cached, stats.blocks_free) == (0, 3, 61)
    assert stats.preemptions_total == 0
