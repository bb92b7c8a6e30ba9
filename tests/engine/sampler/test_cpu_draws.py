"""The CPU's short cuts against what they stand for: plain sorts and running sums, plain comparisons."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream_worker.engine.protocol.request import SamplingSpec
from millstream_worker.engine.runner.sampling import draw, draw_cpu, slot_settings
from millstream_worker.engine.runner.sampling.greedy import most_likely

ROWS = 6
UNIFORMS = np.array([0.0, 0.2, 0.5, 0.8, np.nextafter(1, 0), 1.0])


def logits_of(kind: str, vocab: int, seed: int = 0) -> torch.Tensor:
    made = torch.randn(ROWS, vocab, generator=torch.Generator().manual_seed(seed))
    return {
        "flat": made * 0.01,
        "even": torch.zeros(ROWS, vocab),
        "usual": made * 3,
        "peaked": made * 60,
        "few values": (made * 2).round(),
        "mostly impossible": torch.where(made > 2, made, -torch.inf).index_fill(
            1, torch.tensor([vocab // 2]), 1
        ),
    }[kind]


def both_draws(logits: torch.Tensor, spec: SamplingSpec) -> tuple[list[int], list[int]]:
    """What the CPU draws for the uniforms, and what any other device does."""
    vocab = logits.shape[1]
    own = slot_settings.empty(ROWS)
    own[:] = slot_settings.settings_of(spec, vocab)
    columns = torch.from_numpy(slot_settings.columns(own, UNIFORMS))[..., None]
    temperature, top_p, min_p, noise = columns
    weights = draw.weigh(logits, temperature.float())
    if spec.top_p == 1 and not spec.top_k:
        plain = draw.draw_by_id(weights, min_p, noise)
        ours = draw_cpu.draw_by_id(logits, logits.amax(-1), own, UNIFORMS)
    else:
        top_k = torch.from_numpy(own["top_k"])[:, None]
        plain = draw.draw_by_rank(weights, top_k, top_p, min_p, noise, most=int(top_k.max()))
        ours = draw_cpu.draw_by_rank(logits, logits.amax(-1), own, UNIFORMS)
    return ours.tolist(), plain.tolist()


KINDS = ("flat", "even", "usual", "peaked", "few values", "mostly impossible")
VOCABULARIES = (1, 2, 255, 256, 257, 20_000)


@pytest.mark.parametrize(
    "spec",
    [
        SamplingSpec(),
        SamplingSpec(temperature=0.3, min_p=0.02),
        SamplingSpec(min_p=1.0),
        SamplingSpec(top_p=0.9),
        SamplingSpec(top_p=1e-300),
        SamplingSpec(top_p=0.999999, temperature=2.5),
        SamplingSpec(top_k=2),
        SamplingSpec(top_k=40, top_p=0.8, min_p=0.01),
        SamplingSpec(top_k=700),
        SamplingSpec(top_k=15_000, top_p=0.99),
    ],
    ids=str,
)
def test_the_cpu_draws_what_a_sort_of_everything_draws(spec: SamplingSpec) -> None:
    for kind, vocab in product(KINDS, VOCABULARIES):
        ours, plain = both_draws(logits_of(kind, vocab), spec)
        assert ours == plain, (kind, vocab)


@settings(max_examples=100, deadline=None)
@given(
    st.integers(1, 3000),
    st.floats(0.01, 30),
    st.builds(
        SamplingSpec,
        temperature=st.floats(0.01, 5),
        top_k=st.integers(0, 3000),
        top_p=st.floats(1e-6, 1),
        min_p=st.sampled_from([0.0, 0.001, 0.3]),
    ),
    st.integers(0, 2**32),
)
def test_of_any_shape_and_settings(vocab: int, spread: float, spec: SamplingSpec, seed: int) -> None:
    ours, plain = both_draws(logits_of("usual", vocab, seed) * spread, spec)

    assert ours == plain


# --- the most likely token --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_the_most_likely_token_is_the_first_of_the_highest(dtype: torch.dtype) -> None:
    for kind, shift in product(("flat", "even", "usual", "few values", "mostly impossible"), (0, -20, 20)):
        logits = (logits_of(kind, 999) + shift).to(dtype)
        tokens, non_finite = most_likely(logits)
        assert tokens.tolist() == logits.float().numpy().argmax(-1).tolist(), (kind, shift)
        assert not non_finite.any(), (kind, shift)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_zeros_of_either_sign_are_equal(dtype: torch.dtype) -> None:
    logits = torch.tensor([[-1.0, -0.0, 0.0], [-1.0, 0.0, -0.0], [-3.0, -2.0, -0.0]], dtype=dtype)

    assert most_likely(logits)[0].tolist() == [1, 1, 2]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shift", [-30, 0])
def test_rows_of_no_numbers_are_broken_whatever_their_sign(shift: int, dtype: torch.dtype) -> None:
    """The processor's own NaN has its sign bit set."""
    logits = (logits_of("usual", 70) + shift).to(dtype)
    logits[1, 40] = torch.nan
    logits[2, 69] = torch.tensor(torch.nan).copysign(torch.tensor(-1.0)).to(dtype)
    logits[3, 0] = torch.inf
    logits[4] = -torch.inf
    logits[5, :69] = -torch.inf

    assert most_likely(logits)[1].tolist() == [False, True, True, True, True, False]


def test_no_rows_draw_nothing() -> None:
    tokens, non_finite = most_likely(torch.zeros(0, 9, dtype=torch.bfloat16))

    assert tokens.shape == non_finite.shape == (0,)
