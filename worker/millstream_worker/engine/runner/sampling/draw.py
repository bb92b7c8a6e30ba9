"""Drawing one token per row by inverse CDF: pure functions of logits, parameters and one uniform per row.

Probabilities are held as integers: weight = floor(exp((x - max) / temperature) * 2**n), with n as large as
lets the sum over the vocabulary stay below 2**53. Integer sums are exact in any order, so a row draws the
same token alone, in any batch, in any slot and on any device that agrees on exp; and 2**-36 (for 49,152
tokens) is finer than the float32 logits are.
"""

from __future__ import annotations

import torch
from torch import Tensor

_SUM_BITS = 52  # the sum of all weights is at most 2**52: exact as float64, also times a uniform number


def id_bits(vocab_size: int) -> int:
    return max(1, (vocab_size - 1).bit_length())


def weigh(logits: Tensor, temperature: Tensor) -> Tensor:
    """Integer weights [M, V] of float32 logits [M, V] at temperature [M, 1] (float32, > 0); the most likely
    token weighs 2**(52 - id bits). In a row that holds NaN or +inf, or nothing but -inf, all weigh 0."""
    weights = logits - logits.amax(-1, keepdim=True)
    weights.div_(temperature).exp_().mul_(2.0 ** weight_bits(logits.shape[-1]))
    return weights.nan_to_num_(0.0).to(torch.int64)  # what NaN becomes as an integer is not defined


def draw_by_id(weights: Tensor, min_p: Tensor, noise: Tensor) -> Tensor:
    """Tokens [M] for uniforms [M, 1]: the CDF runs over the vocabulary in token id order."""
    kept = torch.where(weights >= _least_weight(weights.shape[-1], min_p), weights, 0)
    cdf = kept.cumsum(-1)
    return _invert(cdf, cdf[:, -1:], noise)


def draw_by_rank(
    weights: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, noise: Tensor, most: int
) -> Tensor:
    """Tokens [M] for uniforms [M, 1]: the CDF runs from the heaviest token down, equal weights in id order.

    What is kept of each row, [M, 1] each: top_k (int64, at least 1), then top_p (float64) of what is left,
    then min_p (float64), as in transformers; the vocabulary size, 1 and 0 keep everything. `most`: no row's
    top_k is above it; only so many candidates are looked at. A row's token does not depend on it.
    """
    vocab_size = weights.shape[-1]
    bits = id_bits(vocab_size)
    # Unique keys, the heaviest token's the smallest, then by id: whatever sorts them gives the same order.
    keys = torch.arange(vocab_size, device=weights.device) - (weights << bits)
    keys = _smallest(keys, min(most, vocab_size))
    ranked = -(keys >> bits)
    cdf = ranked.cumsum(-1)

    top_k_sum = cdf.gather(-1, top_k - 1)
    nucleus = (top_p * top_k_sum).ceil().to(torch.int64)
    kept = 1 + torch.searchsorted(cdf, nucleus)  # up to the token that fills it, at the most the top k
    kept = kept.minimum((ranked >= _least_weight(vocab_size, min_p)).sum(-1, keepdim=True))
    kept.clamp_(min=1)  # in a row of no weights min-p keeps none
    chosen = _invert(cdf, cdf.gather(-1, kept - 1), noise)
    return keys.gather(-1, chosen[:, None]).squeeze(-1) & ((1 << bits) - 1)


def weight_bits(vocab_size: int) -> int:
    return _SUM_BITS - id_bits(vocab_size)


def _least_weight(vocab_size: int, min_p: Tensor) -> Tensor:
    return (min_p * 2.0 ** weight_bits(vocab_size)).to(torch.int64)


def _smallest(keys: Tensor, count: int) -> Tensor:
    """The `count` smallest keys of each row, in ascending order."""
    if count <= keys.shape[-1] // 16:
        return keys.topk(count, largest=False).values
    return keys.sort(dim=-1).values[:, :count]


def _invert(cdf: Tensor, total: Tensor, noise: Tensor) -> Tensor:
    """Index [M] of the first place where the integer CDF [M, N] exceeds noise * total, both [M, 1]; 0 where
    nothing has any weight."""
    target = (noise * total).to(torch.int64).minimum(total - 1)
    return torch.searchsorted(cdf, target, right=True).squeeze(-1)
