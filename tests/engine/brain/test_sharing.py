"""Prefix sharing, shown by counting: prompt tokens computed = unique tokens, rounded up to blocks."""

from __future__ import annotations

import pytest
from support.engine.brain import ask, rig_of

DOCUMENT = tuple(range(500, 540))  # ten blocks of four


@pytest.mark.parametrize("max_step_tokens", [512, 48, 16, 5])
def test_rows_that_arrive_together_share_at_once(depth: int, max_step_tokens: int) -> None:
    rig = rig_of(pipeline_depth=depth, max_step_tokens=max_step_tokens)
    rig.run(*(ask(handle, (*DOCUMENT, handle, handle)) for handle in range(6)))
    stats = rig.scheduler.stats()
    assert stats.prompt_computed_total == len(DOCUMENT) + 6 * 2
    assert stats.prefix_queried_total == 6 * 42
    assert stats.prefix_hit_total == 5 * 40
    assert sorted(rig.admitted) == [(0, 0), *((handle, 40) for handle in range(1, 6))]


def test_the_last_prompt_token_is_always_computed() -> None:
    rig = rig_of(ask(1, DOCUMENT))
    rig.run()
    rig.run(ask(2, DOCUMENT), ask(3, DOCUMENT[:39]), ask(4, DOCUMENT[:37]))
    assert dict(rig.admitted) == {1: 0, 2: 36, 3: 36, 4: 36}
    assert rig.scheduler.stats().prompt_computed_total == 40 + 4 + 3 + 1


def test_output_is_shared_too() -> None:
    """The next turn of a conversation finds prompt and answer of the one before."""
    rig = rig_of(ask(1, DOCUMENT, max_tokens=9))
    rig.run()
    answer = tuple(rig.output[1])
    rig.run(ask(2, (*DOCUMENT, *answer, 1, 2)))
    assert rig.admitted[1] == (2, 48)  # the ninth token was drawn, but never computed


def test_salts_share_nothing_where_they_count() -> None:
    for salted, cached in ((True, {1: 0, 2: 0, 3: 36}), (False, {1: 0, 2: 36, 3: 36})):
        rig = rig_of(
            *(ask(n, DOCUMENT, salt=salt) for n, salt in ((1, "a"), (2, "b"), (3, "a"))), salted=salted
        )
        rig.run()
        assert dict(rig.admitted) == cached


def test_without_the_cache_only_the_choices_of_a_request_share() -> None:
    rig = rig_of(ask(10, DOCUMENT, choices=2), ask(20, DOCUMENT), prefix_cache=False)
    rig.run()
    assert dict(rig.admitted) == {10: 0, 20: 0}
    assert rig.scheduler.stats().prompt_computed_total == 40 + 4 + 40


@pytest.mark.parametrize("max_step_tokens", [512, 16])
def test_choices_share_full_blocks_and_recompute_the_partial_one(max_step_tokens: int) -> None:
    rig = rig_of(ask(10, DOCUMENT[:38], choices=4, max_tokens=7), max_step_tokens=max_step_tokens)
    rig.run()
    assert rig.scheduler.stats().prompt_computed_total == 38 + 3 * 2
    assert rig.admitted == [(10, 0)]  # once for the request
    assert {handle: len(tokens) for handle, tokens in rig.output.items()} == {10: 7, 11: 7, 12: 7, 13: 7}


def test_a_prefix_stays_while_others_are_evicted() -> None:
    """A document asked about again and again stays in a pool that a stream of others flows through."""
    rig = rig_of(blocks=30, max_rows=1)
    for handle in range(8):
        rig.add(ask(100 + handle, (*DOCUMENT, handle), max_tokens=1))
        rig.run(ask(handle, 36, max_tokens=1))
    hits = dict(rig.admitted)
    assert [hits[100 + handle] for handle in range(8)] == [0] + [40] * 7
    assert not any(hits[handle] for handle in range(8))


def test_damaged_blocks_are_shared_with_nobody() -> None:
    rig = rig_of()
    rig.model.non_finite = {DOCUMENT[-1] + 3}  # the third draw
    rig.add(ask(1, DOCUMENT, max_tokens=8))
    rig.expected.clear()
    rig.run()
    assert rig.output[1] == [540, 541]
    assert rig.finished == {1: "error"}
    rig.model.non_finite = set()
    rig.run(ask(2, DOCUMENT))
    assert dict(rig.admitted)[2] == 0
