"""Who gets in first, seen from outside; the rules one by one are in test_waiting."""

from __future__ import annotations

from collections import Counter

import pytest
from support.brain import ask, rig_of


def test_lane_deadline_and_cached_prefix_decide() -> None:
    rig = rig_of(max_rows=1, max_step_tokens=16)
    rig.add(ask(0, 12, max_tokens=1))
    rig.run()
    rig.add(
        ask(1, 6),
        ask(2, range(12)),  # what row 0 has left in the cache
        ask(3, 6, deadline_ms=2000),
        ask(4, 6, deadline_ms=1000),
        ask(5, 6, priority=0),
    )
    rig.run()
    assert [handle for handle, _ in rig.admitted] == [0, 5, 4, 3, 2, 1]


@pytest.mark.parametrize("depth", [0, 1])
def test_a_flood_of_one_tenant_does_not_drown_another(depth: int) -> None:
    """While both have work, both get the same tokens, whatever the number and length of their requests."""
    rig = rig_of(max_rows=2, pipeline_depth=depth)
    rig.add(*(ask(handle, 8, max_tokens=8, tenant="flood") for handle in range(40)))
    for _ in range(20):
        rig.step()
    rig.add(*(ask(100 + handle, 20, max_tokens=12, tenant="late") for handle in range(10)))
    before = {handle for handle, _ in rig.admitted}
    while not all(100 + handle in rig.finished for handle in range(9)):
        rig.step()
    tokens: Counter[str] = Counter()
    for handle, _ in rig.admitted:
        if handle not in before:
            tokens["late" if handle >= 100 else "flood"] += 32 if handle >= 100 else 16
    assert abs(tokens["late"] - tokens["flood"]) <= 3 * 32
    rig.run()


def test_rows_with_one_prefix_come_one_after_the_other() -> None:
    """Two documents, asked about in turn; with room for one row, the questions are sorted by document."""
    rig = rig_of(max_rows=1, blocks=20)
    for handle in range(10):
        document = range(100 * (handle % 2), 100 * (handle % 2) + 40)
        rig.add(ask(handle, (*document, 900 + handle)))
    rig.run()
    assert [handle % 2 for handle, _ in rig.admitted] == [0] * 5 + [1] * 5
    assert rig.scheduler.stats().prompt_computed_total == 2 * 40 + 10
