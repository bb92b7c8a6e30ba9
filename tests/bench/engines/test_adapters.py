"""Adapters on a tiny model: each computes all tokens, counts its steps, and sees them come."""

from __future__ import annotations

from pathlib import Path

import pytest
from ops.bench.engines.adapters import Adapter, Setup, load
from ops.bench.models.size import size_of
from ops.bench.workloads import Workload

WORK = Workload("x", "", [[11, 12, 13, 14, 15], [21, 22], [31, 32, 33]], [6, 1, 4])
OURS = "millstream:compile_model=off"  # what the compiler is told holds for the whole process


def _setup(folder: Path, **fields: int) -> Setup:
    size = size_of(folder)
    return Setup(str(folder), "cpu", 1, size.kv_token_bytes, kv_tokens=64, longest_row=16, rows=3, **fields)


@pytest.fixture
def engine(tiny: Path, request: pytest.FixtureRequest) -> Adapter:
    return load(request.param, _setup(tiny))


@pytest.mark.parametrize("engine", [OURS, "hf-static"], indirect=True)
def test_all_tokens_of_all_rows_are_noted(engine: Adapter) -> None:
    run = engine.run(WORK, "salt")
    assert [timing.tokens for timing in run.timings] == WORK.output_lengths
    assert run.steps == 6
    assert engine.version
    for timing in run.timings:
        assert timing.first_s is not None
        assert 0 < timing.first_s <= timing.last_s <= run.seconds
    assert run.timings[1].last_s < run.timings[2].last_s < run.timings[0].last_s
    assert engine.run(WORK, "another").steps == 6


def test_static_batches_run_in_turn_with_as_many_rows_as_ours(tiny: Path) -> None:
    run = load("hf-static", _setup(tiny, max_rows=2)).run(WORK, "salt")
    assert run.steps == 6 + 4
    first_of_second_batch = run.timings[2].first_s
    assert first_of_second_batch is not None
    assert first_of_second_batch > run.timings[0].last_s
    many = Workload("x", "", [[11, 12]] * 33, [2] * 33)
    assert load("hf-static", _setup(tiny)).run(many, "salt").steps == 2


def test_our_prefix_cache_finds_nothing_under_another_salt(tiny: Path) -> None:
    engine = load(OURS, _setup(tiny))
    long = Workload("x", "", [list(range(10, 50))], [2])
    computed = []
    for salt in ("one", "two", "two"):
        engine.run(long, salt)
        stats = engine._engine.scheduler.stats()  # type: ignore[attr-defined]
        computed.append(stats.prompt_computed_total)
    assert computed == [40, 80, 88]  # the third finds two blocks of 16


def test_our_engine_takes_settings(tiny: Path) -> None:
    engine = load(f"{OURS},max_rows=1,prefix_cache=off", _setup(tiny))
    assert engine.run(WORK, "salt").steps == sum(WORK.output_lengths)  # one row after the other
    with pytest.raises(ValueError, match="no setting 'speed'"):
        load("millstream:speed=on", _setup(tiny))
    with pytest.raises(ValueError, match="prefix_cache is on or off, not 'yes'"):
        load("millstream:prefix_cache=yes", _setup(tiny))
