"""The counting model must notice what the tests rely on it to notice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.engine.counting import WRONG, CountingRunner

from millstream_worker.engine.brain.batch.plan import Plan, RowLoad, packed_plan
from millstream_worker.engine.protocol.request import SamplingSpec


def plan_of(
    token: int, position: int, table: list[int], *, loads: tuple[RowLoad, ...] = (), step: int = 0
) -> Plan:
    """One row, one token; blocks of two."""
    return replace(
        packed_plan([1], [position + 1], [table], 2, samples=True),
        step=step,
        loads=loads,
        tokens=np.array([token], np.int32),
        output_indices=np.array([position], np.int32),
        noise=np.array([0.5]),
    )


def three_steps(damage: Callable[[Plan], dict[str, Any]] = lambda plan: {}) -> list[int]:
    """The row 10, 11, 12 computed token by token in blocks 2 and 0; `damage` to the last plan."""
    model = CountingRunner(blocks=3, block_size=2, max_rows=1)
    load = RowLoad(0, SamplingSpec(), (10,), ())
    plans = [plan_of(10, 0, [2], loads=(load,)), plan_of(11, 1, [2], step=1)]
    last = plan_of(12, 2, [2, 0], step=2)
    plans.append(replace(last, **damage(last)))
    return [token for plan in plans for token in model.settle(model.launch(plan)).tokens.tolist()]


def test_it_counts() -> None:
    assert three_steps() == [11, 12, 13]


DAMAGES: dict[str, Callable[[Plan], dict[str, Any]]] = {
    "a block that was never written": lambda plan: {"block_tables": (np.array([[1, 0]], np.int32),)},
    "the wrong one of its own": lambda plan: {"block_tables": (np.array([[0, 0]], np.int32),)},
    "a later position": lambda plan: {"positions": plan.positions + 1},
    "an earlier position": lambda plan: {"positions": plan.positions - 1},
    "its token lands beside its place": lambda plan: {"slot_mapping": (plan.slot_mapping[0] + 1,)},
    "over an earlier token": lambda plan: {"slot_mapping": (np.array([4], np.int64),)},
    "another token": lambda plan: {"tokens": plan.tokens + 1},
}


@pytest.mark.parametrize("name", DAMAGES)
def test_any_damage_gives_a_wrong_token(name: str) -> None:
    assert three_steps(DAMAGES[name])[-1] == 13 + WRONG
