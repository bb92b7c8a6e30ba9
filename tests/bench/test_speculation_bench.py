"""The benchmark of draft tokens: what it plays, and what it makes of its turns."""

from __future__ import annotations

from pathlib import Path

import pytest
from ops.bench.speculation.part import interval, loops
from ops.bench.speculation.texts import Prompt
from ops.bench.speculation.turns import MODES, Turns

from millstream_worker.engine.protocol.config import EngineConfig

PLAYED: dict[Prompt, list[int]] = {
    tuple(range(20, 40)): [*range(20, 40)] * 2,  # what its prompt says, twice
    tuple(range(50, 60)): [7, 8, 9],
}


@pytest.mark.parametrize("mode", MODES)
def test_a_shape_writes_what_it_is_given(spelling: Path, mode: str) -> None:
    config = EngineConfig(
        str(spelling),
        device="cpu",
        threads=1,
        dtype="float32",
        kv_memory="8MiB",
        compile_model="off",
        speculate=mode,
    )
    turn = Turns(config, PLAYED).run(list(PLAYED), 100)
    assert turn.outputs == list(PLAYED.values())
    if mode == "always":
        assert 10 < turn.accepted <= turn.drafted
    if mode == "off":
        assert turn.drafted == 0


def test_intervals_of_medians() -> None:
    assert interval([5, 1, 2, 3, 4, 0, 6, 7, 8]) == (1, 7)  # by tables: ranks 2 and 8 of 9
    assert interval([2, 1, 3]) == (1, 3)


def test_loops() -> None:
    assert loops([*range(16)] * 3)
    assert not loops([*range(16)] * 2 + [5])
