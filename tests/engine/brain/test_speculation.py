"""Guesses, what they are worth, and how many of them pay; on a device whose steps take what the test says."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.engine.brain import ask, rig_of
from support.engine.counting import ErringDrafter, Rig

from millstream_worker.engine.brain.batch.rows import Origin, Row
from millstream_worker.engine.brain.scheduler import Scheduler
from millstream_worker.engine.brain.scheduler_config import SchedulerConfig
from millstream_worker.engine.brain.speculation.acceptance import Acceptance, GuessSource
from millstream_worker.engine.brain.speculation.step_costs import StepCosts
from millstream_worker.engine.brain.speculation.text_drafter import MOST, TextGuesses
from millstream_worker.engine.brain.speculation.token_index import END, LONGEST_MATCH, TokenIndex

_UNUSED: Any = (None, b"", [])


@given(st.lists(st.integers(0, 3), min_size=2, max_size=60))
def test_the_index_finds_the_longest_newest_match_of_its_end(tokens: list[int]) -> None:
    index = TokenIndex()
    for start in range(0, len(tokens), 7):  # in parts
        index.extend(tokens[start : start + 7])
    length, place = index.repeats()
    ends = [end for end in range(2, len(tokens)) if tokens[end - 2 : end] == tokens[-2:]]
    if not ends:
        assert (length, place) == (0, 0)
        return
    assert tokens[place - length : place] == tokens[len(tokens) - length :]
    longest = max(_match(tokens, end) for end in ends[-8:])  # it looks at so many
    assert length == longest
    assert not [end for end in ends[-8:] if end > place and _match(tokens, end) == longest]


def _match(tokens: list[int], end: int) -> int:
    length = 0
    while length < min(end, LONGEST_MATCH) and tokens[end - 1 - length] == tokens[-1 - length]:
        length += 1
    return length


def test_what_comes_after_a_match_ends_with_its_text() -> None:
    index = TokenIndex()
    index.extend([1, 2, 3, 4, END, 1, 2, 5, END])
    assert index.ends_like([9, 1, 2]) == (2, 7)
    assert index.after(7, 5) == [5]
    assert index.after(2, 5) == [3, 4]
    assert index.ends_like([2, 9]) == (0, 0)


def test_acceptance_follows_what_is_seen() -> None:
    acceptance = Acceptance()
    for _ in range(300):
        acceptance.observe(GuessSource.OWN, 6, right=True)
        acceptance.observe(GuessSource.PAST, 6, right=False)
    own, past = (acceptance.survival(source, 6, 3) for source in (GuessSource.OWN, GuessSource.PAST))
    assert own[0] > 0.95
    assert not past  # hardly any chance
    chances = acceptance.survival(GuessSource.OWN, 2, 20)
    assert chances == sorted(chances, reverse=True)


def costs(seconds: Callable[[int], float], sizes: range) -> StepCosts:
    learned = StepCosts(64)
    for tokens in [*sizes] * 2:
        learned.settled(tokens, seconds(tokens))
    return learned


def test_all_that_is_likely_pays_where_tokens_cost_nothing() -> None:
    assert costs(lambda _: 0.02, range(1, 65)).best(1, 1, [0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3]) == 7


def test_no_draft_pays_where_every_token_costs_the_same() -> None:
    learned = costs(lambda tokens: 0.01 * tokens, range(1, 65))
    assert learned.best(8, 8, [0.99] * 40) == 0
    assert not learned.pays(8, 8)


@given(st.floats(0.0, 0.02), st.lists(st.floats(0.01, 1.0), max_size=40), st.integers(1, 8))
def test_no_other_number_would_be_faster(slope: float, given: list[float], rows: int) -> None:
    survivals = sorted(given, reverse=True)
    learned = costs(lambda tokens: 0.02 + slope * tokens, range(1, 65))
    best = learned.best(rows, rows, survivals)

    def rate(drafts: int) -> float:
        return (rows + sum(survivals[:drafts])) / (0.02 + slope * (rows + drafts))

    sizes = [size for size in (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48) if size > rows]
    others = [size - rows for size in sizes if size - rows <= len(survivals)]
    assert best in (0, *others)
    assert rate(best) == pytest.approx(max([rate(0), *map(rate, others)]), rel=0.02)


def test_unknown_sizes_are_tried_up_to_twice_the_largest() -> None:
    learned = costs(lambda _: 0.02, range(1, 3))
    assert learned.best(2, 2, [0.9] * 20) == 2
    learned.settled(4, 0.5)  # recorded
    assert learned.best(2, 2, [0.9] * 20) == 2
    learned.settled(4, 0.02)
    assert learned.best(2, 2, [0.9] * 20) == 6
    assert learned.best(3, 3, [0.9] * 20) == 5  # not seen itself: as its neighbours
    assert StepCosts(64).best(3, 3, [0.9] * 20) == 0


def test_one_long_step_does_not_stop_drafts() -> None:
    learned = costs(lambda _: 0.02, range(1, 9))
    for seconds in (0.02, 0.02, 0.5):
        learned.settled(8, seconds)
    assert learned.best(1, 1, [0.9] * 7) == 7


def test_a_size_that_has_not_come_for_long_is_measured_anew() -> None:
    """Until then it is estimated by its neighbours."""
    learned = costs(lambda tokens: 9.0 if tokens == 8 else 0.02, range(1, 17))
    assert learned.best(1, 1, [0.9] * 7) == 6
    for _ in range(300):
        for tokens in (*range(1, 8), *range(9, 17)):
            learned.settled(tokens, 0.02)
    assert learned.best(1, 1, [0.9] * 7) == 7


def test_a_text_of_one_token_repeats_nothing() -> None:
    index = TokenIndex()
    for tokens in ((), (7,)):
        index.extend(tokens)
        assert index.repeats() == (0, 0)


def rig(config: dict[str, object], every: int) -> Rig:
    made = rig_of(**config)
    made.scheduler = Scheduler(SchedulerConfig(**vars_of(made.scheduler.config)), ErringDrafter(every))
    return made


def vars_of(config: SchedulerConfig) -> dict[str, object]:
    return {name: getattr(config, name) for name in SchedulerConfig.__slots__}


def test_drafts_take_fewer_steps() -> None:
    made = rig({"speculate": "always"}, every=10_000)
    made.run(ask(1, 5, max_tokens=40), most_steps=20)
    stats = made.scheduler.stats()
    assert stats.accepted_total == stats.drafted_total > 20


def test_only_output_counts_as_accepted_when_a_row_ends() -> None:
    made = rig({"speculate": "always"}, every=10_000)
    made.run(ask(1, [10], max_tokens=40, end_ids=(27,)))
    steps = [(step.tokens, drafts) for step in made.settled for drafts in step.drafts]
    assert all(drafts == (1, len(tokens) - 1, len(tokens) - 1) for tokens, drafts in steps[:-1])
    tokens, (_, drafted, accepted) = steps[-1]
    assert (tokens[-1], accepted) == (27, len(tokens))
    assert drafted > accepted
    assert made.scheduler.stats().drafted_total == sum(drafted for _, (_, drafted, _) in steps)


@pytest.mark.parametrize("earlier", [0, 13])
def test_a_prediction_is_followed_from_its_start_and_past_errors(earlier: int) -> None:
    """Also by a row that goes on after an earlier attempt. The model counts, whatever is predicted."""
    answer = list(range(10, 50))
    predicted = [*answer[:20], 99, *answer[21:]]
    made = rig_of(speculate="always")
    asked = ask(1, [7, 8, 9], max_tokens=40, outputs=(tuple(answer[:earlier]),), prediction=tuple(predicted))
    made.run(asked)
    assert made.scheduler.stats().accepted_total > (40 - earlier) / 2


def test_a_long_prediction_is_read_as_the_output_goes_on() -> None:
    """Ends of thousands of long ones are not in memory before they can be right."""
    predicted = tuple(range(10, 60_010))
    guesses = TextGuesses(max_rows=1)
    row = Row(Origin(ask(1, [7, 8, 9], prediction=predicted), *_UNUSED), 1, 0, 0, 1, frozenset(), 0, [], [])
    row.slot = 0
    tracemalloc.start()
    try:
        for tokens in (0, 5_000, 5_001, 9_000):
            row.output[:] = predicted[:tokens]
            guess = guesses.guess(row)
            assert guess is not None
            assert guess.tokens == list(predicted[tokens : tokens + MOST])
        assert tracemalloc.get_traced_memory()[0] < 6e6
    finally:
        tracemalloc.stop()


def test_a_wrong_prediction_costs_little() -> None:
    made = rig_of(speculate="always")
    made.run(ask(1, [7, 8, 9], max_tokens=40, prediction=tuple([8, 9, 50] * 20)))
    assert made.scheduler.stats().drafted_total < 10


def test_drafts_take_neither_cached_nor_others_blocks() -> None:
    """Of 7 blocks, the first row has left 2 in the cache, and the second grows into the last ones."""
    made = rig({"speculate": "always", "blocks": 7, "max_rows": 4, "context_length": 28}, every=10_000)
    made.run(ask(1, 8, max_tokens=1))
    made.add(ask(2, 8, max_tokens=12))
    for _ in range(3):
        made.step()
    cached = made.scheduler.stats().blocks_cached
    made.run()
    assert cached == 2
    assert made.scheduler.stats().preemptions_total == 0


def test_drafts_fill_a_block_where_the_cache_holds_the_others() -> None:
    made = rig({"speculate": "always", "blocks": 7, "context_length": 28}, every=10_000)
    made.run(ask(1, 16, max_tokens=5))  # leaves 5 blocks in the cache, and the next prompt takes the others
    before = len(made.plans)
    made.run(ask(2, 5, max_tokens=12))
    assert [plan.kv_lens.tolist() for plan in made.plans[before:]] == [
        [5], [6, 7, 8], [9, 10, 11, 12], [13, 14, 15, 16],
    ]  # fmt: skip


def test_drafts_never_pass_the_longest_output() -> None:
    made = rig({"speculate": "always"}, every=10_000)
    made.run(ask(1, 5, max_tokens=9))
    assert max(int(plan.kv_lens.max()) for plan in made.plans) <= 5 + 9 - 1


def test_suspects_are_not_drafted() -> None:
    made = rig({"speculate": "always"}, every=10_000)
    made.run(ask(1, 5, max_tokens=20, alone=True))
    assert made.scheduler.stats().drafted_total == 0


def test_one_step_ahead_no_step_is_planned_beside_drafts() -> None:
    made = rig({"speculate": "always", "pipeline_depth": 1}, every=4)
    made.run(ask(1, 5, max_tokens=40), ask(2, 5, max_tokens=30))
    assert made.scheduler.stats().drafted_total > 0
    for plan in made.plans:
        drafted = len(plan.row_slots) > len(np.unique(plan.row_slots))
        assert not (drafted and plan.from_device.any())


def test_prefix_groups_keep_drafted_rows() -> None:
    prompt = list(range(100, 140))
    made = rig({"speculate": "always", "max_rows": 16}, every=10_000)
    made.run(ask(1, prompt, max_tokens=2))  # its blocks are cached
    made.run(ask(2, [*prompt, 1], max_tokens=20), ask(3, [*prompt, 2], max_tokens=20))
    grouped = [plan for plan in made.plans if len(plan.prefix_group_lens)]
    assert max(len(plan.prefix_group_segments) for plan in grouped) > 2
    for plan in grouped:
        assert sorted(plan.prefix_group_segments.tolist()) == list(range(plan.decodes))
