"""How far a result is from what was expected, as a share of the largest expected magnitude."""

from __future__ import annotations

import math

import torch
from torch import Tensor

TOLERANCE = {torch.bfloat16: 2e-2, torch.float16: 4e-3, torch.float32: 1e-4}  # of one layer's attention
# Of the logits of a row, by what the model's rows are rounded to: the median over rows, and the largest. In
# bfloat16 two right ways were 0.05 and 0.06 apart for a 135M model, 0.02 and 0.11 for a mixture of experts.
# In FP8 a number that lies between two codes goes either way: 0.07 for 32 layers of random weights with a
# deviation of 0.02; 0.25, and 0.40 at most, for 0.06. Logits that have nothing in common are 1.4 apart.
LOGITS_TOLERANCE = {
    torch.float8_e4m3fn: (0.5, 0.9),
    torch.bfloat16: (0.2, 0.7),
    torch.float16: (0.03, 0.2),
    torch.float32: (1e-3, 1e-2),
}


class Mismatch(Exception):
    """Something fast computes something else; the message says what and how far off."""


def deviation(got: Tensor, want: Tensor) -> float:
    """Largest absolute difference over the largest expected magnitude; infinite where a finite number was
    expected and none came."""
    finite = want.isfinite()
    got, want = (torch.where(finite, tensor.float(), 0.0) for tensor in (got, want))
    difference = float((got - want).abs().max())
    return difference / max(float(want.abs().max()), 1e-6) if math.isfinite(difference) else math.inf


def compare(got: Tensor, want: Tensor, what: str, limit: float) -> float:
    """Returns the deviation. Raises Mismatch beyond `limit`."""
    off = deviation(got, want)
    if off > limit:
        raise Mismatch(f"{what} is off by {off:.2g} of the largest value; the limit is {limit:.2g}")
    return off


def compare_logits(got: Tensor, want: Tensor, what: str, dtype: torch.dtype) -> float:
    """Returns the largest deviation of a row, as a share of its length; of rows that are expected to be
    finite. Raises Mismatch if that, or the median, is beyond the limits of `dtype`, or if there is no such
    row."""
    finite = want.isfinite().all(-1)
    if not finite.any():
        raise Mismatch(f"{what} cannot be compared: no row of its logits is expected to be finite")
    got, expected = got[finite].float(), want[finite].float()
    off = (got - expected).norm(dim=-1) / expected.norm(dim=-1).clamp(min=1e-6)
    median, largest = float(off.median()), float(off.max())
    limits = LOGITS_TOLERANCE[dtype]
    if not (median <= limits[0] and largest <= limits[1]):
        raise Mismatch(f"{what} has other logits: rows are off by {median:.2g} (median) to {largest:.2g}")
    return largest
