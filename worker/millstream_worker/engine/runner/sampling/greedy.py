"""The most likely token of each row, from logits of the model's own dtype."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from millstream_worker.engine.runner.native.native_greedy import NativeGreedy

_INFINITY, _MINUS_INFINITY = 0x7F80, 0xFF80  # bfloat16's bits


def most_likely(logits: Tensor, native: NativeGreedy | None = None) -> tuple[Tensor, Tensor]:
    """Tokens [M] of logits [M, V], the first of equal ones, and [M] which rows hold NaN or +inf, or nothing
    but -inf: their token is 0."""
    if logits.device.type != "cpu":
        peak, tokens = logits.max(-1)
        unsound = peak.isfinite().logical_not_()
        return tokens.masked_fill_(unsound, 0), unsound
    if native is not None and native.takes(logits):
        chosen, non_finite = (array.copy() for array in native.most_likely(logits))
    # numpy's argmax is vectorised, torch's is not: it took twelve times as long, and in bfloat16 more.
    elif logits.dtype == torch.bfloat16:
        chosen, non_finite = _of_bfloat16(logits)
    else:
        chosen, non_finite = _of_float32(logits)
    chosen[non_finite] = 0
    return torch.from_numpy(chosen), torch.from_numpy(non_finite)


def _of_float32(logits: Tensor) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    values = logits.float().numpy()
    tokens = values.argmax(-1)  # of the first NaN, where there is one
    return tokens, ~np.isfinite(_at(values, tokens))


def _of_bfloat16(logits: Tensor) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """By their bits, which order as the numbers do for those above zero; as integers without a sign, NaNs of
    either sign are the largest of theirs."""
    bits = logits.view(torch.int16).numpy()
    tokens = bits.argmax(-1)
    peak = _at(bits, tokens)
    non_finite = (peak >= _INFINITY) | (bits.view(np.uint16).max(-1) > _MINUS_INFINITY)
    if len(unordered := np.flatnonzero((peak <= 0) & ~non_finite)):  # nothing above zero
        tokens[unordered], non_finite[unordered] = _of_float32(logits[torch.from_numpy(unordered)])
    return tokens, non_finite


def _at(values: NDArray[Any], tokens: NDArray[np.int64]) -> NDArray[Any]:
    return values[np.arange(len(tokens)), tokens]
