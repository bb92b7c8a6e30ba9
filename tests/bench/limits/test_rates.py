"""Least times against values by hand: a model of 3 layers whose numbers are round."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ops.bench.limits.rates import decode_tokens_s, drained_tokens_s, prefill_tokens_s, requests_s
from ops.bench.load.arrivals import Prompts
from ops.bench.machine import Limits
from ops.bench.models.size import ModelSize

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


def test_prefill_multiplies_with_all_weights_and_with_the_tokens_before() -> None:
    pairs = 3 * 10 * 11 / 2
    assert prefill_tokens_s(MODEL, 10, SLOW_UNITS) == pytest.approx(10 * 100 / (2 * 1000 * 10 + 8 * pairs))


def test_drained_rows_are_prefilled_and_decoded() -> None:
    """A row of 10 + 4 tokens: its prompt, then 4 tokens at 12 of context on average."""
    prompt_s = (2 * 1000 * 10 + 8 * 3 * 55) / 100
    output_s = 4 * (2 * 1200 + 8 * 3 * 12) / 100
    assert drained_tokens_s(MODEL, 2, 10, 4, SLOW_UNITS) == pytest.approx(4 / (prompt_s + output_s))


def test_a_shared_prefix_is_never_computed_and_read_once_for_all_rows() -> None:
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
