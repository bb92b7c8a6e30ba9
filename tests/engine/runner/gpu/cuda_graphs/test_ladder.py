"""Who records, and the sizes of recorded steps: few, and none far above what runs in it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from millstream_worker.engine.runner.gpu.cuda_graphs.ladder import row_rungs, rung_for, token_rungs
from millstream_worker.engine.runner.gpu.cuda_graphs.recording import wanted

MOST = st.integers(1, 8192)


def test_rungs() -> None:
    assert row_rungs(20) == [1, 2, 4, 8, 16, 20]
    assert row_rungs(64) == [1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64]
    assert row_rungs(256)[-5:] == [128, 160, 192, 224, 256]
    assert token_rungs(40) == [16, 24, 32, 40]
    assert token_rungs(800)[-4:] == [512, 640, 768, 800]
    assert token_rungs(8192)[-4:] == [5120, 6144, 7168, 8192]
    assert len(token_rungs(8192)) < 40


@given(MOST)
def test_rungs_rise_to_the_limit(most: int) -> None:
    for rungs, last in ((row_rungs(most), most), (token_rungs(most), most)):
        assert rungs == sorted(set(rungs))
        assert rungs[-1] == last


@given(MOST, st.data())
def test_a_step_runs_in_the_smallest_that_holds_it(most: int, data: st.DataObject) -> None:
    size = data.draw(st.integers(1, most))
    rungs = token_rungs(most)
    rung = rung_for(rungs, size)
    assert rung is not None
    assert rung == min(rung for rung in rungs if rung >= size)
    assert rung - size <= max(8, size // 4, 16 - size), "too much padding"


def test_nothing_holds_what_is_above_the_limit() -> None:
    assert rung_for(row_rungs(8), 9) is None
    assert rung_for([], 1) is None


def test_what_was_asked_for_on_what_device() -> None:
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert [wanted(name, cuda) for name in ("auto", "on", "off")] == [True, True, False]
    assert not wanted("auto", cpu)
    assert not wanted("off", cpu)
    with pytest.raises(ValueError, match="'on' needs a CUDA device, this is cpu"):
        wanted("on", cpu)
