"""The same tokens stay possible, equally probable, as under transformers' own logits processors."""

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
from millstream_worker.engine.runner.sampling.draw import draw_by_id, draw_by_rank, weigh
from millstream_worker.engine.runner.sampling.penalties import Penalties

VOCAB = 503
WARPERS = {
    "top_k": SamplingSpec(top_k=7),
    "top_p": SamplingSpec(top_p=0.73),
    "min_p": SamplingSpec(min_p=0.04),
    "top_k and top_p": SamplingSpec(top_k=40, top_p=0.9),
    "all": SamplingSpec(temperature=1.7, top_k=90, top_p=0.8, min_p=0.02),
}


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


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", WARPERS)
def test_filters_keep_what_the_warpers_keep(name: str, seed: int) -> None:
    logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(seed)) * 2.5
    spec = WARPERS[name]
    expected = theirs(logits, spec)[0]
    grid = (torch.arange(20_000, dtype=torch.float64)[:, None] + 0.5) / 20_000
    weights = weigh(logits, torch.tensor([[spec.temperature]])).expand(len(grid), -1)
    column = torch.ones(len(grid), 1, dtype=torch.float64)
    if name == "min_p":
        drawn = draw_by_id(weights, column * spec.min_p, grid)
    else:
        top_k = spec.top_k or VOCAB
        filters = torch.full((len(grid), 1), top_k), column * spec.top_p, column * spec.min_p
        drawn = draw_by_rank(weights, *filters, grid, most=top_k)
    counted = torch.bincount(drawn, minlength=VOCAB)

    assert not counted[expected == 0].any()
    assert counted[expected > 1e-4].all()
    assert (counted / len(grid) - expected).abs().max() <= 1.001 / len(grid)
    assert np.allclose(distribution(Row(logits[0].numpy(), spec)), expected, atol=1e-5)


@pytest.mark.parametrize("penalty", [0.5, 1.0, 1.3, 10.0])
def test_the_repetition_penalty_is_theirs_over_prompt_and_output(penalty: float) -> None:
    logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(7)) * 3
    prompt, output = (1, 2, 2, 500), (2, 9, 77)
    expected = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([[*prompt, *output]]), logits)
    penalties = Penalties(VOCAB, 1, torch.device("cpu"))
    penalties.load(0, prompt, output)
    ours, row_0 = logits.clone(), torch.tensor([0])
    penalties.apply(ours, row_0, row_0, torch.tensor([[penalty], [0.0], [0.0]]))

    assert torch.equal(ours, expected)
    row = Row(logits[0].numpy(), SamplingSpec(repetition_penalty=penalty), 0.5, prompt, output)
    assert np.allclose(changed(row), expected[0], atol=1e-5)
