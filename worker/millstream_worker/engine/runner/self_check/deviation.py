"""How far a result is from what was expected, as a share of the largest expected magnitude."""

from __future__ import annotations

import math

import torch
from torch import Tensor

TOLERANCE = {torch.bfloat16: 2e-2, torch.float16: 4e-3, torch.float32: 1e-4}  # of one layer's attention
LOGITS_TOLERANCE = {torch.bfloat16: 5e-2, torch.float16: 1e-2, torch.float32: 1e-3}  # of all layers together


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
