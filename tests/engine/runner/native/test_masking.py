"""Masks of grammars on logits, by our library and by torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from millstream_worker.engine.brain.batch.plan import RowLoad, TokenMasks, packed_plan
from millstream_worker.engine.protocol.request import SamplingSpec
from millstream_worker.engine.runner.native.library import Library
from millstream_worker.engine.runner.sampling.native_chooser import NativeChooser, NativeGreedy
from millstream_worker.engine.runner.sampling.numpy_chooser import NumpyChooser
from millstream_worker.engine.runner.sampling.sampler import Sampler


def masks_of(chance: np.random.Generator, size: int, rows: list[int]) -> TokenMasks:
    """Words of all bits, of none and of some."""
    words = chance.integers(-(2**31), 2**31, (len(rows), -(-size // 32)))
    kind = chance.integers(0, 3, words.shape)
    bits = np.where(kind == 0, 0, np.where(kind == 1, -1, words)).astype(np.int32)
    return TokenMasks(np.array(rows, np.int32), bits)


def masked(logits: torch.Tensor, masks: TokenMasks) -> torch.Tensor:
    """By the definition."""
    expected = logits.clone()
    for row, bits in zip(masks.indices, masks.bits, strict=True):
        for token in range(logits.shape[1]):
            if not bits[token // 32] >> token % 32 & 1:
                expected[row, token] = -torch.inf
    return expected


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float16])
@pytest.mark.parametrize("size", [1, 31, 64, 203])
def test_what_no_bit_allows_becomes_minus_infinity(library: Library, dtype: torch.dtype, size: int) -> None:
    masks = masks_of(np.random.default_rng(size), size, [0, 2, 3])
    logits = torch.randn(5, 2 * size, generator=torch.Generator().manual_seed(size)).to(dtype)
    for chooser in (NativeChooser(library), NumpyChooser()):
        wide = logits.clone()
        chooser.mask(wide[:, :size], masks)  # rows that lie apart
        assert torch.equal(wide[:, :size], masked(logits[:, :size], masks))
        assert torch.equal(wide[:, size:], logits[:, size:])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("size", [1, 31, 64, 203, 4096, 10_000])
def test_the_most_likely_is_an_allowed_one(library: Library, dtype: torch.dtype, size: int) -> None:
    """Also where forbidden ones are no numbers, and most chunks forbidden."""
    greedy, chance = NativeGreedy(library), np.random.default_rng(size)
    masks = masks_of(chance, size, [0, 2, 3, 4])
    masks.bits[2] = 0
    masks.bits[2, -1] = 1
    logits = torch.randn(6, size, generator=torch.Generator().manual_seed(size)).to(dtype)
    logits[2, ::3] = torch.nan
    logits[4, ::2] = 0.0
    expected = masked(logits, masks)
    before = logits.clone()
    for given in (masks, TokenMasks(masks.indices[:0], masks.bits[:0]), None):
        wanted = expected if given is masks else logits
        tokens, broken = (array.copy() for array in greedy.most_likely(logits, given))
        plain, unsound = greedy.most_likely(wanted)
        assert (tokens.tolist(), broken.tolist()) == (plain.tolist(), unsound.tolist())
    assert torch.equal(logits.nan_to_num(), before.nan_to_num())


def test_reported_log_probabilities_are_the_models_own(library: Library) -> None:
    sampler = Sampler(40, 2, "cpu", NativeChooser(library))
    plan = packed_plan([1, 1], [1, 1], [[0], [1]], 4, samples=True)
    for slot in range(2):
        sampler.load(RowLoad(slot, SamplingSpec(temperature=0.0, top_logprobs=1), (1,), ()))
    logits = torch.randn(2, 40, generator=torch.Generator().manual_seed(3))
    own = logits.log_softmax(-1)
    likely = int(logits[1].argmax())
    allowed = (likely + 1) % 40
    bits = np.zeros((1, 2), np.uint32)
    bits[0, allowed // 32] = 1 << allowed % 32

    sampled = sampler.collect(
        sampler.sample(logits, plan, TokenMasks(np.ones(1, np.int32), bits.view(np.int32)))
    )

    assert sampled.tokens.tolist() == [int(own[0].argmax()), allowed]
    assert sampled.logprobs[1].logprob == pytest.approx(float(own[1, allowed]), abs=1e-5)
    assert sampled.logprobs[1].top_ids == (likely,)
