"""Every sampling parameter against its plain definition. A fine grid of uniform numbers stands for chance: a
token of probability p must be drawn by a share p of the grid, to within one step of the grid."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from support.engine.sampling_steps import Row, distribution, draw

from millstream_worker.engine.protocol.request import SamplingSpec

VOCAB = 61
GRID = 2000

PROMPT = (3, 5, 5, 8, 40)
OUTPUT = (5, 9, 9, 9, 21)

ALONE = {
    "plain": SamplingSpec(),
    "cold": SamplingSpec(temperature=0.3),
    "hot": SamplingSpec(temperature=3.0),
    "greedy": SamplingSpec(temperature=0.0),
    "top_p": SamplingSpec(top_p=0.8),
    "top_p tiny": SamplingSpec(top_p=1e-9),
    "top_k": SamplingSpec(top_k=5),
    "top_k 1": SamplingSpec(top_k=1, temperature=5.0),
    "top_k above the vocabulary": SamplingSpec(top_k=10**9),
    "min_p": SamplingSpec(min_p=0.2),
    "min_p 1": SamplingSpec(min_p=1.0),
    "repetition": SamplingSpec(repetition_penalty=1.7),
    "repetition below 1": SamplingSpec(repetition_penalty=0.6),
    "presence": SamplingSpec(presence_penalty=1.2),
    "presence below 0": SamplingSpec(presence_penalty=-1.5),
    "frequency": SamplingSpec(frequency_penalty=0.7),
    "bias": SamplingSpec(logit_bias=((2, 3.0), (9, -100.0), (0, 1.5))),
    "min_tokens": SamplingSpec(min_tokens=6, end_ids=(1, 7)),
    "min_tokens reached": SamplingSpec(min_tokens=5, end_ids=(1, 7)),
}
TOGETHER = {
    "filters": SamplingSpec(temperature=1.4, top_k=20, top_p=0.9, min_p=0.05),
    "penalties": SamplingSpec(repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.2),
    "everything": SamplingSpec(
        temperature=0.8,
        top_k=30,
        top_p=0.95,
        min_p=0.01,
        repetition_penalty=1.2,
        presence_penalty=-0.3,
        frequency_penalty=0.1,
        logit_bias=((11, 2.0), (5, -1.0)),
        min_tokens=9,
        end_ids=(0, 11),
    ),
    "greedy with penalties": SamplingSpec(
        temperature=0.0, repetition_penalty=1.9, logit_bias=((4, 1.0),), min_tokens=8, end_ids=(2,)
    ),
}
SPECS = ALONE | TOGETHER


def some_logits(seed: int, vocab: int = VOCAB, spread: float = 2.0) -> NDArray[np.float32]:
    return (np.random.default_rng(seed).standard_normal(vocab) * spread).astype(np.float32)


def a_row(name: str, seed: int = 0, noise: float = 0.5) -> Row:
    return Row(some_logits(seed), SPECS[name], noise, PROMPT, OUTPUT)


@pytest.mark.parametrize("name", SPECS)
def test_the_grid_draws_each_token_as_often_as_its_probability(name: str) -> None:
    row = a_row(name)
    grid = (np.arange(GRID) + 0.5) / GRID
    drawn = draw([a_row(name, noise=float(noise)) for noise in grid]).tokens

    expected = distribution(row) * GRID
    counted = np.bincount(drawn, minlength=VOCAB)

    assert np.abs(counted - expected).max() <= 1.001
    assert not counted[expected == 0].any()


def test_bounds_of_the_uniform_number() -> None:
    """0 gives the first token that has any weight; the largest number below 1 (and 1 itself) the last."""
    logits = some_logits(1)
    logits[[0, 1, VOCAB - 1]] = -np.inf
    first, last, beyond = draw([Row(logits, noise=noise) for noise in (0.0, np.nextafter(1, 0), 1.0)]).tokens

    assert first == 2
    assert last == beyond == VOCAB - 2


@pytest.mark.parametrize("top_p", [1.0, 0.9])
def test_a_large_vocabulary_keeps_its_tail(top_p: float) -> None:
    """150,000 equal tokens, each with a share that float32 sums would get wrong by whole tokens."""
    vocab = 150_000
    targets = np.array([0, 1, 74_999, 119_998, 134_999])
    noise = (targets + 0.5) / (vocab * top_p)
    rows = [Row(np.zeros(vocab, np.float32), SamplingSpec(top_p=top_p), float(value)) for value in noise]

    assert draw(rows).tokens.tolist() == targets.tolist()


def test_equal_logits_rank_by_id() -> None:
    logits = np.zeros(VOCAB, np.float32)
    logits[[50, 20, 30]] = 4.0
    grid = [(index + 0.5) / 40 for index in range(40)]

    assert draw([Row(logits, SamplingSpec(temperature=0.0))]).tokens.tolist() == [20]
    assert draw([Row(logits, SamplingSpec(top_k=1), 0.99)]).tokens.tolist() == [20]
    assert set(draw([Row(logits, SamplingSpec(top_k=2), noise) for noise in grid]).tokens) == {20, 30}
    assert set(draw([Row(logits, SamplingSpec(top_p=0.2), noise) for noise in grid]).tokens) == {20}


@pytest.mark.parametrize("temperature", [1e-4, 1e-6, 1e-300])
def test_next_to_no_temperature_is_greedy(temperature: float) -> None:
    row = Row(some_logits(2), SamplingSpec(temperature=temperature), 0.999)

    assert draw([row]).tokens[0] == row.logits.argmax()


def test_next_to_no_repetition_penalty_leaves_sound_logits() -> None:
    """Divided by it, the logit of a token that was seen is beyond float32: its row would count as
    non-finite."""
    logits = np.linspace(-3, 3, VOCAB).astype(np.float32)
    for penalty in (5e-324, 1e-300, 1e-38):
        drawn = draw([Row(logits, SamplingSpec(repetition_penalty=penalty), 0.999, prompt=(VOCAB - 2,))])

        assert not drawn.non_finite
        assert drawn.tokens.tolist() == [VOCAB - 2]


def test_a_top_k_beyond_what_is_selected_sorts_instead() -> None:
    vocab = 40_000
    logits = some_logits(3, vocab, spread=0.1)
    order = np.argsort(-logits, kind="stable")
    rows = [Row(logits, SamplingSpec(top_k=top_k), np.nextafter(1, 0)) for top_k in (3, 1024, 1025, 30_000)]

    assert draw(rows).tokens.tolist() == order[[2, 1023, 1024, 29_999]].tolist()
