"""Least times, FLOPs, bytes, MBU and MFU against values by hand, for models whose numbers are round."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ops.bench.limits.rates import decode_tokens_s, drained_tokens_s, prefill_tokens_s, requests_s
from ops.bench.limits.work import Work, work_of
from ops.bench.load.arrivals import Prompts
from ops.bench.machine import Limits
from ops.bench.models.size import ModelSize
from ops.bench.workloads import Workload

MODEL = ModelSize(
    vocab_size=100,
    token_weights=1000,
    head_weights=200,
    weight_bytes=2400,
    kv_token_bytes=60,
    pair_flops=8,
    windows=(None, None, None),
)
SLOW_MEMORY = Limits(read_bytes_s=100.0, flops_s=1e12)
SLOW_UNITS = Limits(read_bytes_s=1e12, flops_s=100.0)


def test_decode_reads_the_weights_once_and_every_row_its_context() -> None:
    assert decode_tokens_s(MODEL, 4, 10, SLOW_MEMORY) == pytest.approx(4 / ((2400 + 4 * 10 * 60) / 100))
    assert decode_tokens_s(MODEL, 4, 10, SLOW_UNITS) == pytest.approx(100 / (2 * 1200 + 8 * 10 * 3))


def test_prefill_counts_all_weights_and_all_earlier_tokens() -> None:
    pairs = 3 * 10 * 11 / 2
    assert prefill_tokens_s(MODEL, 10, SLOW_UNITS) == pytest.approx(10 * 100 / (2 * 1000 * 10 + 8 * pairs))


def test_drained_rows_are_prefilled_and_decoded() -> None:
    """A row of 10 + 4 tokens: its prompt, then 4 tokens at 12 of context on average."""
    prompt_s = (2 * 1000 * 10 + 8 * 3 * 55) / 100
    output_s = 4 * (2 * 1200 + 8 * 3 * 12) / 100
    assert drained_tokens_s(MODEL, 2, 10, 4, SLOW_UNITS) == pytest.approx(4 / (prompt_s + output_s))


def test_a_shared_prefix_is_not_computed_and_is_read_once() -> None:
    prompts = Prompts(shared=20, own=5, output=2)  # one of the two tokens is computed, at 26 tokens
    own_pairs, all_pairs = sum(range(21, 27)) * 3, sum(range(1, 27)) * 3
    shared, apart = (requests_s(MODEL, prompts, 4, way, SLOW_UNITS) for way in (True, False))
    assert 100 / shared == pytest.approx(2 * 1000 * 6 + 2 * 200 * 2 + 8 * own_pairs)
    assert 100 / apart == pytest.approx(2 * 1000 * 26 + 2 * 200 * 2 + 8 * all_pairs)
    shared, apart = (requests_s(MODEL, prompts, 4, way, SLOW_MEMORY) for way in (True, False))
    assert 100 / apart == pytest.approx(2400 * 2 / 4 + 60 * 26)
    assert 100 / shared == pytest.approx(2400 * 2 / 4 + 60 * (6 + 20 / 4))


def test_layers_with_a_window_read_it_for_each_row() -> None:
    """Two tokens are computed behind a prompt of 25: a full layer sees 26 and 27, of which 20 are shared, and
    one with a window of 4 the last four."""
    windowed = replace(MODEL, windows=(None, 4, 4))
    shared = requests_s(windowed, Prompts(shared=20, own=5, output=3), 4, True, SLOW_MEMORY)
    full, near = 26 + 27 - 2 * 20 * (1 - 1 / 4), 4 + 4
    assert 100 / shared == pytest.approx(2400 * 3 / 4 + 20 * (full + 2 * near))


FULL = replace(MODEL, kv_token_bytes=20, windows=(None, None))
WINDOWED = replace(FULL, windows=(None, 2))
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
