"""Log-probabilities are the model's own, whatever was done to the logits before the draw."""

from __future__ import annotations

import numpy as np
import pytest
from support.engine.sampling_steps import Row, draw

from millstream_worker.engine.protocol.request import SamplingSpec

VOCAB = 101


def logits_of(seed: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return np.random.default_rng(seed).standard_normal(VOCAB).astype(np.float32) * 3


def test_drawn_and_most_likely_tokens_of_the_raw_logits() -> None:
    logits = logits_of(0)
    expected = logits.astype(np.float64) - np.log(np.exp(logits.astype(np.float64)).sum())
    order = np.argsort(-expected)
    spec = SamplingSpec(
        temperature=0.0, repetition_penalty=3.0, logit_bias=((int(order[50]), 100.0),), top_logprobs=4
    )
    drawn = draw([Row(logits, spec, prompt=tuple(order[:3].tolist()))])

    found = drawn.logprobs[0]
    assert drawn.tokens[0] == order[50]
    assert found.logprob == pytest.approx(expected[order[50]], abs=1e-5)
    assert found.top_ids == tuple(order[:4])
    assert found.top_logprobs == pytest.approx(expected[order[:4]], abs=1e-5)


def test_only_rows_that_asked_and_as_many_as_they_asked_for() -> None:
    wanted = [None, 0, 20, None, 3]
    drawn = draw([Row(logits_of(seed), SamplingSpec(top_logprobs=top)) for seed, top in enumerate(wanted)])

    assert {index: len(found.top_ids) for index, found in drawn.logprobs.items()} == {1: 0, 2: 20, 4: 3}
    assert all(found.logprob < 0 for found in drawn.logprobs.values())


def test_equal_ones_by_id_and_impossible_ones_at_the_floor() -> None:
    logits = np.full(VOCAB, -np.inf, np.float32)
    logits[[70, 20, 40]] = 1.0
    found = draw([Row(logits, SamplingSpec(temperature=0.0, top_logprobs=5))]).logprobs[0]

    assert found.top_ids == (20, 40, 70, 0, 1)
    assert found.top_logprobs == pytest.approx([-np.log(3)] * 3 + [-9999.0] * 2)


def test_more_than_the_vocabulary_has() -> None:
    logits = np.zeros(3, np.float32)

    assert draw([Row(logits, SamplingSpec(top_logprobs=20))]).logprobs[0].top_ids == (0, 1, 2)
