"""The definitions that the sampler's tests compare with are those of transformers' own logits processors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.engine.sampling_steps import Row, changed, distribution
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from millstream_worker.engine.protocol.request import SamplingSpec

VOCAB = 503


def theirs(logits: torch.Tensor, spec: SamplingSpec) -> torch.Tensor:
    ids = torch.zeros(1, 1, dtype=torch.long)
    logits = TemperatureLogitsWarper(spec.temperature)(ids, logits)
    if spec.top_k:
        logits = TopKLogitsWarper(spec.top_k)(ids, logits)
    if spec.top_p < 1:
        logits = TopPLogitsWarper(spec.top_p)(ids, logits)
    if spec.min_p:
        logits = MinPLogitsWarper(spec.min_p)(ids, logits)
    return logits.softmax(-1)


@pytest.mark.parametrize(
    "spec",
    [
        SamplingSpec(top_k=7),
        SamplingSpec(top_p=0.73),
        SamplingSpec(min_p=0.04),
        SamplingSpec(top_k=40, top_p=0.9),
        SamplingSpec(temperature=1.7, top_k=90, top_p=0.8, min_p=0.02),
    ],
)
def test_filters_keep_what_the_warpers_keep(spec: SamplingSpec) -> None:
    for seed in range(9):
        logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(seed)) * 2.5
        expected = theirs(logits, spec)[0].numpy()
        found = distribution(Row(logits[0].numpy(), spec))

        assert np.array_equal(found > 0, expected > 0)
        assert np.allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("penalty", [0.5, 1.0, 1.3, 10.0])
def test_the_repetition_penalty_is_theirs_over_prompt_and_output(penalty: float) -> None:
    logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(7)) * 3
    prompt, output = (1, 2, 2, 500), (2, 9, 77)
    expected = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([[*prompt, *output]]), logits)

    row = Row(logits[0].numpy(), SamplingSpec(repetition_penalty=penalty), 0.5, prompt, output)
    assert np.allclose(changed(row), expected[0], atol=1e-5)
