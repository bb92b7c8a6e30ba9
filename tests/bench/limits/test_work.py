"""FLOPs, bytes, MBU and MFU against values by hand, for a model of two layers whose numbers are round."""

from __future__ import annotations

import pytest
from ops.bench.limits.work import Work, work_of
from ops.bench.machine import Limits
from ops.bench.models.size import ModelSize
from ops.bench.workloads import Workload

FULL = ModelSize(
    vocab_size=100,
    token_weights=1000,
    head_weights=200,
    weight_bytes=2400,
    kv_token_bytes=20,
    pair_flops=8,
    windows=(None, None),
)
WINDOWED = ModelSize(100, 1000, 200, 2400, 20, 8, windows=(None, 2))
APART = Workload("x", "", [[1, 2, 3], [4, 5]], [3, 2])
SHARING = Workload("y", "", [[1, 2, 3, 4], [1, 2, 3, 5]], [2, 2])


def test_work_counts_what_is_computed_and_nothing_twice() -> None:
    work = work_of(APART, FULL)
    # 5 prompt tokens, 2 draws; pairs per layer 1+2+3 and 1+2
    assert work.prefill_flops == 2 * 1000 * 5 + 2 * 200 * 2 + 8 * 2 * (6 + 3)
    # fed back: 2 tokens at contexts 4 and 5, one at context 3
    assert work.decode_flops == (2 * 1000 + 2 * 200) * 3 + 8 * 2 * (4 + 5 + 3)
    assert work.kv_bytes == 20 * (4 + 5 + 3)
    assert work.rounds == 3
    assert work.weight_bytes == 2400


def test_a_shared_prefix_is_computed_once_and_read_once_a_step() -> None:
    work = work_of(SHARING, FULL)
    # tokens 1 2 3 once, then 4 and 5; pairs: 1+2+3 once, then 4 each
    assert work.prefill_flops == 2 * 1000 * 5 + 2 * 200 * 2 + 8 * 2 * (6 + 4 + 4)
    # one decode step: three shared tokens, and of each row its own two
    assert work.kv_bytes == 20 * (3 + 2 + 2)
    assert work.decode_flops == (2 * 1000 + 2 * 200) * 2 + 8 * 2 * (5 + 5)


def test_a_window_bounds_what_a_layer_looks_at() -> None:
    work = work_of(Workload("x", "", [[1, 2, 3]], [3]), WINDOWED)
    assert work.prefill_flops == 2 * 1000 * 3 + 2 * 200 + 8 * (6 + 5)  # of the second layer 1+2+2
    assert work.kv_bytes == 10 * (4 + 5) + 10 * (2 + 2)


def test_only_layers_that_look_at_everything_share_a_prefix() -> None:
    work = work_of(SHARING, WINDOWED)
    assert work.kv_bytes == 10 * (3 + 2 + 2) + 10 * (2 + 2)


def test_a_single_prompt_shares_nothing_with_itself() -> None:
    work = work_of(Workload("x", "", [[1, 2, 3]], [2]), FULL)
    assert work.kv_bytes == 20 * 4
    assert work.prefill_flops == 2 * 1000 * 3 + 2 * 200 + 8 * 2 * 6


def test_the_limit_takes_the_slower_of_memory_and_matrix_units() -> None:
    work = Work(prefill_flops=1000, decode_flops=500, kv_bytes=50, weight_bytes=100, rounds=4)
    computing = Limits(read_bytes_s=1e9, flops_s=100)
    assert work.least_s(computing) == pytest.approx(10 + 5)
    reading = Limits(read_bytes_s=10, flops_s=1e9)
    assert work.least_s(reading) == pytest.approx(10 + (3 * 100 + 50) / 10)


def test_utilisation_is_work_over_time_and_rate() -> None:
    work = Work(prefill_flops=1000, decode_flops=500, kv_bytes=50, weight_bytes=100, rounds=4)
    limits = Limits(read_bytes_s=10, flops_s=100)
    assert work.mbu(steps=5, seconds=110, limits=limits) == pytest.approx((500 + 50) / 110 / 10)
    assert work.mfu(seconds=30, limits=limits) == pytest.approx(0.5)
