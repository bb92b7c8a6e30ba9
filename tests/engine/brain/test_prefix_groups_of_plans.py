"""The prefix groups in a scheduler's plans. That they are true is checked for every plan of every test, by
the counting model."""

from __future__ import annotations

from itertools import pairwise

from support.engine.brain import ask, rig_of

from millstream_worker.engine.brain.batch.plan import Plan
from millstream_worker.engine.brain.batch.shared_prefixes import SharingCosts

DOCUMENT = tuple(range(500, 540))  # ten blocks of four
OTHER = tuple(range(700, 720))


def groups(plan: Plan) -> list[tuple[int, list[int]]]:
    """Tokens, and the slots that share them."""
    slots = [
        plan.row_slots[plan.prefix_group_segments[a:b]].tolist()
        for a, b in pairwise(plan.prefix_group_starts)
    ]
    return list(zip(plan.prefix_group_lens.tolist(), slots, strict=True))


def test_rows_read_together_from_their_first_decode_step_on(depth: int) -> None:
    rig = rig_of(pipeline_depth=depth)
    rig.run(*(ask(handle, (*DOCUMENT, handle, handle), max_tokens=6) for handle in range(3)), ask(3, 9))
    assert groups(rig.plans[0]) == []
    assert [groups(plan) for plan in rig.plans[1:6]] == [[(40, [0, 1, 2])]] * 5


def test_rows_join_and_leave_a_prefix_group() -> None:
    rig = rig_of(ask(0, (*DOCUMENT, 1), max_tokens=9), ask(1, (*DOCUMENT, 2), max_tokens=3))
    rig.steps(2)
    rig.run(ask(2, (*DOCUMENT, 3), max_tokens=4))
    assert [groups(plan) for plan in rig.plans[:6]] == [
        [],
        [(40, [0, 1])],
        [(40, [0, 1])],  # the newcomer prefills
        [(40, [0, 2])],  # the second has ended
        [(40, [0, 2])],
        [(40, [0, 2])],
    ]
    assert groups(rig.plans[-1]) == []


def test_a_row_in_the_place_of_another_reads_what_is_its_own() -> None:
    """The same slots decode before and after; in between one did not."""
    rig = rig_of(ask(0, (*DOCUMENT, 1), max_tokens=12), ask(1, (*DOCUMENT, 2), max_tokens=4), max_rows=2)
    rig.run(ask(2, (*OTHER, 3), max_tokens=4))
    decoding = [(plan.row_slots[: plan.decodes].tolist(), groups(plan)) for plan in rig.plans]
    together = [found for slots, found in decoding if slots == [0, 1]]
    assert together == [[(40, [0, 1])]] * 3 + [[]] * 3


def test_prefix_groups_stay_true_when_rows_are_preempted_and_come_back() -> None:
    rig = rig_of(blocks=24, max_rows=6)
    rig.run(*(ask(handle, (*DOCUMENT, handle), max_tokens=40) for handle in range(5)))
    assert rig.scheduler.stats().preemptions_total > 0
    sizes = [len(plan.prefix_group_segments) for plan in rig.plans]
    assert {2, 3, 4} <= set(sizes), "rows leave"
    assert any(fewer < more for fewer, more in pairwise(sizes[3:])), "and come back"


def test_what_is_not_worth_it_and_the_switch() -> None:
    for costs in (None, SharingCosts(row=16, step=4096)):
        rig = rig_of(sharing=costs)
        rig.run(*(ask(handle, (*DOCUMENT, handle)) for handle in range(4)))
        assert not any(groups(plan) for plan in rig.plans)


def test_aborted_rows_leave_their_prefix_group() -> None:
    rig = rig_of(pipeline_depth=1)
    rig.add(*(ask(handle, (*DOCUMENT, handle), max_tokens=20) for handle in range(3)))
    for _ in range(4):
        rig.step()
    rig.abort(1)
    rig.run()
    assert groups(rig.plans[-2]) == [(40, [0, 2])]


def test_choices_of_a_request_share_all_full_blocks_of_its_prompt() -> None:
    rig = rig_of()
    rig.add(ask(0, DOCUMENT[:38], choices=4, max_tokens=5))
    rig.run()
    assert [(36, [0, 1, 2, 3])] in [groups(plan) for plan in rig.plans]


def test_several_documents_the_longest_first() -> None:
    rig = rig_of(max_step_tokens=200)
    rig.add(*(ask(i, (*(DOCUMENT if i % 2 else OTHER), i)) for i in range(4)))
    rig.run()
    assert [(tokens, len(slots)) for tokens, slots in groups(rig.plans[1])] == [(40, 2), (20, 2)]


def test_the_next_row_of_a_slot_is_told_from_the_last() -> None:
    rig = rig_of(max_rows=1)
    rig.add(ask(0, 4), ask(1, 4))
    seen = set()
    while not rig.scheduler.idle:
        rig.step()
        seen.add(int(rig.scheduler._batch.entries[0]))
    assert seen == {1, 2}
