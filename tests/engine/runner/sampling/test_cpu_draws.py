"""The CPU's short cuts against what they stand for: plain sorts and running sums."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.engine.sampling_steps import KINDS, logits_of

from millstream_worker.engine.protocol.request import SamplingSpec
from millstream_worker.engine.runner.sampling import draw, draw_cpu, slot_settings

ROWS = 6
UNIFORMS = np.array([0.0, 0.2, 0.5, 0.8, np.nextafter(1, 0), 1.0])


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


@pytest.mark.slow
@settings(max_examples=300)
@given(
    st.sampled_from(KINDS),
    st.sampled_from([1, 2, 255, 256, 257, 20_000]) | st.integers(1, 3000),
    st.builds(
        SamplingSpec,
        temperature=st.floats(0.01, 5),
        top_k=st.sampled_from([0, 1, 2, 40, 15_000]) | st.integers(0, 3000),
        top_p=st.sampled_from([1.0, 0.999999, 1e-300]) | st.floats(1e-6, 1),
        min_p=st.sampled_from([0.0, 0.001, 0.3, 1.0]),
    ),
    st.integers(0, 2**32),
)
def test_the_cpu_draws_what_a_sort_of_everything_draws(
    kind: str, vocab: int, spec: SamplingSpec, seed: int
) -> None:
    ours, plain = both_draws(logits_of(kind, ROWS, vocab, torch.Generator().manual_seed(seed)), spec)

    assert ours == plain
