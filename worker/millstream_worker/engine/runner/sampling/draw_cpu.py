"""The draws of `draw` on the CPU: the same tokens, without a sort or a running sum of the whole
vocabulary.

Weights stay float32, which holds each of them exactly, and are summed as float64, which is exact in any order
up to 2**53. A running sum is only taken where the answer is: of the chunk, or of the bin of weights of like
size, in which the total passes the target. Sorting all 49,152 tokens of 32 rows took as long as two thirds of
a 135M model's whole step.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from millstream_worker.engine.runner.sampling.draw import weight_bits
from millstream_worker.engine.runner.sampling.slot_settings import Settings

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]

_CHUNK = 256  # tokens
_BIN_SHIFT = 18  # of a float32's bits: 32 bins for each power of two
_DEPTH = 32  # tokens of a column, in which heavy ones are looked for
_LIKELY = 512  # tokens that mostly hold what top-p keeps


def draw_by_id(logits: Tensor, peak: Tensor, settings: Settings, noise: Float64) -> Int64:
    """Tokens [M] of float32 logits [M, V] with maxima `peak` [M] for uniforms [M]: the CDF runs over the
    vocabulary in token id order."""
    weights = _weigh(logits, peak, settings["temperature"])
    vocab_size = weights.shape[1]
    if settings["min_p"].any():
        weights *= weights >= _least_weight(vocab_size, settings["min_p"])[:, None]
    sums = np.add.reduceat(weights, np.arange(0, vocab_size, _CHUNK), axis=1, dtype=np.float64)
    cdf = sums.cumsum(1)
    target = np.minimum(np.floor(noise * cdf[:, -1]), cdf[:, -1] - 1)
    chunk = (cdf <= target[:, None]).sum(1)
    rows = np.arange(len(weights))
    before = cdf[rows, chunk] - sums[rows, chunk]
    ids = chunk[:, None] * _CHUNK + np.arange(_CHUNK)
    inside = weights[rows[:, None], ids.clip(max=vocab_size - 1)].cumsum(1, dtype=np.float64)
    tokens: Int64 = chunk * _CHUNK + (inside <= (target - before)[:, None]).sum(1)
    return tokens


def draw_by_rank(logits: Tensor, peak: Tensor, settings: Settings, noise: Float64) -> Int64:
    """Tokens [M] of float32 logits [M, V] with maxima `peak` [M] for uniforms [M]: the CDF runs from the
    heaviest token down, equal weights in id order."""
    weights = _weigh(logits, peak, settings["temperature"])
    least = _least_weight(weights.shape[1], settings["min_p"])
    tokens = np.empty(len(weights), np.int64)
    for row, own in enumerate(weights):
        ranking, kept = _kept(own, int(settings["top_k"][row]), float(settings["top_p"][row]))
        if least[row]:
            kept = min(kept, ranking.of_at_least(least[row]))
        target = min(math.floor(float(noise[row]) * kept), kept - 1)  # below the sum also for a uniform of 1
        tokens[row] = ranking.find(target, "right")[0]
    return tokens


def _kept(weights: Float32, top_k: int, top_p: float) -> tuple[Ranking, float]:
    """A ranking of at least all tokens that top-k and top-p keep, and the sum of those."""
    if top_k < len(weights):
        ranking = Ranking(weights, _heaviest(weights, top_k))
        total = ranking.heaviest(top_k)
        nucleus = math.ceil(top_p * total)
    else:
        ranking = Ranking(weights, _heaviest(weights, _LIKELY))
        total = float(weights.sum(dtype=np.float64))
        nucleus = math.ceil(top_p * total)
        if ranking.total < nucleus:
            ranking = Ranking(weights, np.arange(len(weights)))
    return ranking, ranking.find(nucleus, "left")[1] if top_p < 1 else total


def _heaviest(weights: Float32, count: int) -> Int64:
    """The ids of at least the `count` heaviest tokens, and of all that are not lighter than those: columns
    of the vocabulary have so many maxima that are no lighter than the last of these."""
    columns = len(weights) // _DEPTH
    if count > columns:
        return np.arange(len(weights))
    maxima = weights[: columns * _DEPTH].reshape(_DEPTH, columns).max(0)
    return np.flatnonzero(weights >= np.partition(maxima, columns - count)[columns - count])


class Ranking:
    """Some tokens of a row from the heaviest down. They are counted into bins; a bin is sorted when an answer
    lies in it."""

    def __init__(self, weights: Float32, ids: Int64) -> None:
        self._ids = ids  # ascending
        self._weights = weights[ids] if len(ids) < len(weights) else weights
        size = self._weights.view(np.int32) >> _BIN_SHIFT  # grows with the weight, which is not below 0
        self._bins = size.max() - size
        self._cdf = np.bincount(self._bins, self._weights).cumsum()
        self.total = float(self._cdf[-1])

    def find(self, target: float, side: Literal["left", "right"]) -> tuple[int, float]:
        """The first token at which the running sum reaches ("left", target at most the total) or exceeds
        ("right", target below it) the target; and the sum there."""
        place = int(self._cdf.searchsorted(target, side))
        members = self._members(place)
        cdf = self._before(place) + self._weights[members].cumsum(dtype=np.float64)
        index = int(cdf.searchsorted(target, side))
        return int(self._ids[members[index]]), float(cdf[index])

    def heaviest(self, count: int) -> float:
        """The sum of the `count` heaviest."""
        counts = np.bincount(self._bins).cumsum()
        place = int(counts.searchsorted(count))
        missing = count - (int(counts[place - 1]) if place else 0)
        members = self._members(place)[:missing]
        return self._before(place) + float(self._weights[members].sum(dtype=np.float64))

    def of_at_least(self, weight: float) -> float:
        """The sum of those that weigh so much."""
        return float(self._weights[self._weights >= np.float64(weight)].sum(dtype=np.float64))

    def _before(self, place: int) -> float:
        return float(self._cdf[place - 1]) if place else 0.0

    def _members(self, place: int) -> Int64:
        """The tokens of a bin, the heaviest first, equal ones by id."""
        members = np.flatnonzero(self._bins == place)
        return members[np.argsort(-self._weights[members], kind="stable")]


def _weigh(logits: Tensor, peak: Tensor, temperature: Float64) -> Float32:
    """Weights [M, V], whole numbers as from `draw.weigh`; in a row of non-finite logits all are the
    same."""
    weights = logits - peak[:, None]
    if not (sound := peak.isfinite()).all():
        weights[~sound] = 0.0
    weights.div_(torch.from_numpy(temperature.astype(np.float32))[:, None])
    weights.exp_().mul_(2.0 ** weight_bits(logits.shape[1])).floor_()
    answer: Float32 = weights.numpy()
    return answer


def _least_weight(vocab_size: int, min_p: Float64) -> Float64:
    return np.floor(min_p * 2.0 ** weight_bits(vocab_size))
