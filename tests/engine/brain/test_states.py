"""Checkpoints of recurrent state: where rows make them, who waits for one, and which are evicted. The
counting model keeps a state for each slot, and tells of any that is not its row's."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

import pytest
from support.engine.brain import ask, rig_of
from support.engine.counting import Rig

from millstream_worker.engine.brain.cache.states import StatePool
from millstream_worker.engine.brain.scheduler_config import SchedulerConfig

BLOCK = 4
CHANCE = random.Random(1)


def text(length: int) -> list[int]:
    return [CHANCE.randrange(1000) for _ in range(length)]


def hybrid(**sizes: object) -> Rig:
    return rig_of(**{"blocks": 4000, "context_length": 400, "max_step_tokens": 96, "state_places": 8} | sizes)


def states_of(rig: Rig) -> StatePool:
    states = rig.scheduler.states
    assert states is not None
    return states


def computed(rig: Rig) -> int:
    return rig.scheduler.stats().prompt_computed_total


def ideal(prompts: Iterable[Sequence[int]]) -> int:
    """Prompt tokens that a cache of keys and values alone would compute, whole blocks being shared."""
    seen: set[tuple[int, ...]] = set()
    total = 0
    for prompt in prompts:
        blocks = [tuple(prompt[:end]) for end in range(BLOCK, len(prompt), BLOCK)]
        total += len(prompt) - BLOCK * sum(block in seen for block in blocks)
        seen.update(blocks)
    return total


SYSTEM, DOCUMENTS, HEADS = text(50), [text(70) for _ in range(6)], [text(40) for _ in range(3)]
SHARED = text(93)
WORK = {  # prompts, and the copies that they take beside those at prompts' ends
    "all but the last token": ([[*SHARED, number] for number in range(40)], 1),
    "an instruction before documents": ([[*SYSTEM, *text(30)] for _ in range(30)], 1),
    "documents x questions": ([[*SYSTEM, *one, *text(9)] for one in DOCUMENTS for _ in range(5)], 7),
    "few-shot heads": ([[*SYSTEM, *HEADS[number % 3], *text(9)] for number in range(30)], 4),
    "nothing shared": ([text(40) for _ in range(20)], 0),
}


@pytest.mark.parametrize("name", WORK)
@pytest.mark.parametrize("depth", [0, 1])
def test_known_prompts_compute_what_they_share_once(name: str, depth: int) -> None:
    prompts, copies = WORK[name]
    rig = hybrid(pipeline_depth=depth, state_places=64)
    rig.run(*(ask(number, prompt, 2) for number, prompt in enumerate(prompts)))
    assert computed(rig) <= 1.02 * ideal(prompts)
    assert states_of(rig).shared == copies


def test_choices_of_one_prompt_take_one_copy() -> None:
    rig = hybrid()
    rig.run(ask(0, text(33), choices=6))
    assert computed(rig) == 33 + 5 * 1
    assert (states_of(rig).saved, states_of(rig).loaded) == (1, 5)


def test_without_a_prefix_cache_only_choices_share() -> None:
    rig = hybrid(prefix_cache=False)
    prompt = text(33)
    rig.run(ask(0, prompt, choices=2), ask(10, prompt))
    assert computed(rig) == 2 * 33 + 1


def test_salts_keep_states_apart() -> None:
    rig = hybrid()
    prompt = text(33)
    rig.run(ask(0, prompt, salt="a"), ask(1, prompt, salt="b"))
    assert computed(rig) == 2 * 33


def chat(rig: Rig, users: int, turns: int) -> list[list[int]]:
    """Each user waits for the answer; returns all prompts."""
    talks, prompts = [[*SYSTEM, *text(12)] for _ in range(users)], []
    for turn in range(turns):
        for user in range(users):
            rig.run(ask(100 * turn + user, talks[user], 2))
            prompts.append(list(talks[user]))
            talks[user] += [*text(20)]
    return prompts


def test_a_chat_goes_on_from_the_end_of_its_last_turn() -> None:
    rig = hybrid(state_places=7)
    prompts = chat(rig, users=5, turns=4)
    assert computed(rig) == ideal(prompts) + 48  # the second user's: nobody knew that it would come


def test_a_prompts_end_evicts_nothing() -> None:
    """But the end of the turn before. The next user's turn is computed from what both begin with."""
    rig = hybrid(state_places=3)
    prompts = chat(rig, users=5, turns=4)
    assert 1.5 * ideal(prompts) < computed(rig) <= 3.5 * ideal(prompts)


def test_the_second_visit_of_a_prefix_makes_a_checkpoint() -> None:
    """The first did not know that anyone would come."""
    rig = hybrid(state_places=1)
    prompts = [[*SYSTEM, *text(30)] for _ in range(5)]
    for number, prompt in enumerate(prompts):
        rig.run(ask(number, prompt, 1))
    assert computed(rig) == 80 + 80 + 3 * (80 - 48)


def test_rows_behind_those_that_wait_are_not_held_up() -> None:
    rig = hybrid(max_step_tokens=300)
    long, other = text(200), text(12)
    rig.add(*(ask(number, [*long, *text(5)], 2) for number in range(3)), ask(9, other, 2))
    rig.step()
    assert [handle for handle, _ in rig.admitted] == [0, 9]
    rig.run()
    assert computed(rig) == 205 + 2 * 5 + 12


def test_rows_wait_no_longer_for_one_that_leaves() -> None:
    rig = hybrid(max_step_tokens=32)
    long = text(200)
    rig.add(*(ask(number, [*long, *text(5)], 2) for number in range(3)))
    rig.steps(3)
    rig.abort(0)
    rig.run()
    assert sorted(rig.finished) == [1, 2]
    assert computed(rig) == 3 * 32 + 205 + 5


def test_a_preempted_row_begins_at_its_deepest_checkpoint() -> None:
    rig = hybrid(blocks=36, max_rows=3, max_step_tokens=64)
    shared = text(30)
    rig.run(*(ask(number, [*shared, *text(4)], 60) for number in range(3)))
    assert rig.scheduler.stats().preemptions_total > 0
    assert states_of(rig).loaded >= 2 + rig.scheduler.stats().preemptions_total


@pytest.mark.parametrize("prompt", [2, 3, 4, 9, 12])
def test_a_row_may_begin_behind_its_own_prompt(prompt: int) -> None:
    """It is resumed, and the next turn of its chat was here already."""
    first = text(prompt)
    answer = [(first[-1] + 1 + number) % 1000 for number in range(23)]
    rig = hybrid(state_places=3)
    following = [*first, *answer[:20]]
    rig.run(*(ask(number, [*following, *text(6)], 1) for number in range(2)))
    before = computed(rig)
    rig.run(ask(9, first, 30, outputs=(tuple(answer),)))
    assert states_of(rig).loaded == 2
    assert computed(rig) == before  # all of it is output


def test_a_row_does_not_wait_for_one_of_a_lower_lane() -> None:
    """That may wait itself, for as long as others of the higher lane come."""
    rig = hybrid(max_step_tokens=32)
    long = text(200)
    rig.add(ask(0, [*long, *text(5)], 2, priority=1))
    rig.step()
    rig.add(ask(1, [*long, *text(5)], 2, priority=0), ask(2, [*long, *text(5)], 2, priority=1))
    rig.step()
    assert [handle for handle, _ in rig.admitted] == [0, 1]
    rig.run()
    assert computed(rig) <= 2 * 205 + 5


def test_a_prompts_end_that_has_no_place_cuts_nothing() -> None:
    rig = hybrid(state_places=1, max_step_tokens=300)
    rig.run(ask(0, text(50), 1))
    rig.run(ask(1, text(50), 1))
    assert [plan.token_count for plan in rig.plans] == [48, 2, 50]


def test_the_same_prompt_again_begins_at_its_last_shared_block() -> None:
    """Of 48 tokens: the last one is computed, and so its block."""
    rig = hybrid(state_places=1)
    rig.run(ask(9, text(50), 1))  # has the place
    prompt = text(48)
    for number in range(3):
        rig.run(ask(number, prompt, 1))
    assert computed(rig) == 50 + 48 + 48 + 4


def test_without_a_prefix_cache_no_end_is_kept() -> None:
    rig = hybrid(prefix_cache=False)
    rig.run(ask(0, text(50), 1))
    assert states_of(rig).saved == 0


def test_damaged_checkpoints_are_forgotten() -> None:
    rig = hybrid()
    prompt = [*range(100, 140)]
    rig.run(ask(0, prompt, 1))
    rig.model.non_finite = {140}
    rig.expected[1] = ([], "error")
    rig.scheduler.add(ask(1, prompt, 4), rig.now)
    rig.steps(2)
    assert rig.finished[1] == "error"
    rig.model.non_finite = set()
    before = computed(rig)
    rig.run(ask(2, prompt, 1))
    assert computed(rig) - before == 40


def test_what_several_known_rows_share_is_evicted_last() -> None:
    pool = StatePool(2, BLOCK)
    rig = hybrid()
    rows = [
        next(iter(rig.scheduler._row_factory.rows(ask(number, [*prompt, number, number]))))
        for number, prompt in enumerate(
            [SYSTEM, SYSTEM, DOCUMENTS[0], DOCUMENTS[0], DOCUMENTS[1], DOCUMENTS[1]]
        )
    ]
    for slot, row in enumerate(rows):
        row.slot = slot
        pool.row_added(row)

    def save(row: int, blocks: int) -> None:
        pool.enter(rows[row], 0, 0)
        pool.reached(rows[row], blocks * BLOCK)
        pool.leave(rows[row])
        pool.begin_plan()

    save(0, 12)
    save(2, 17)
    assert pool.depth(rows[1].chain, 12) == 12
    pool.row_over(rows[3])  # of this document only one row is left
    save(4, 17)
    assert (pool.depth(rows[1].chain, 12), pool.depth(rows[2].chain, 17)) == (12, 0)
    assert pool.depth(rows[5].chain, 17) == 17
    assert pool.depth(rows[5].chain, 16) == 0


@pytest.mark.parametrize(
    ("beside", "problem"),
    [({"host_blocks": 2}, "has no host swap"), ({"speculate": "auto"}, "set most_drafts")],
)
def test_what_states_cannot_have_is_refused(beside: dict[str, object], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        hybrid(**beside)


def test_the_configuration_has_no_places_by_default() -> None:
    assert SchedulerConfig.__dataclass_fields__["state_places"].default == 0
    assert rig_of().scheduler.states is None


def test_no_row_takes_a_slot_of_those_that_wait_for_a_checkpoint() -> None:
    document = tuple(range(5000, 5040))
    rig = rig_of(max_rows=8, blocks=200, max_step_tokens=200, pipeline_depth=0, state_places=8)
    rig.add(*[ask(handle, (*document, 900 + handle), 30) for handle in range(4)])
    rig.add(*[ask(10 + handle, 3, 20) for handle in range(12)])
    rig.step()
    assert [handle for handle, _ in rig.admitted] == [0, 10, 11, 12, 13]
    rig.step()
    assert {1, 2, 3} < {handle for handle, _ in rig.admitted}
