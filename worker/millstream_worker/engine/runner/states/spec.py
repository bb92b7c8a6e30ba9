"""Describes what one module keeps of a row, always in float32, and what it is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch

ITEM_BYTES = 4


@dataclass(frozen=True, slots=True)
class ConvolutionSpec:
    """A causal convolution of each channel with its newest inputs: out = Σ weight[j] · in[t − taps + 1 + j] +
    bias, and SiLU of that where it is `activated`. The state holds the newest `taps` − 1 inputs."""

    channels: int
    taps: int
    activated: bool
    dtype: torch.dtype = torch.float32  # of inputs

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.taps - 1, self.channels)


@dataclass(frozen=True, slots=True)
class RuleSpec:
    """Linear attention that forgets. Per head, with the state S: S ← exp(g) · S, S ← S + k ⊗ β v, out = Sᵀ q.
    So are Mamba-2's scans (Dao and Gu, 2024): g = A dt, k = B, β = dt, v = x, q = C.

    One that `corrects` is the gated delta rule (Yang et al., 2024): keys and queries have length 1,
    S ← S + k ⊗ β (v − Sᵀ k), and out is divided by √key_dim."""

    key_heads: int  # of queries, too; each serves heads // key_heads consecutive heads
    heads: int
    key_dim: int
    value_dim: int
    by_channel: bool = False  # g has a number for each of key_dim; else one for each head
    corrects: bool = True
    dtype: torch.dtype = torch.float32  # of queries, keys and values

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.heads, self.key_dim, self.value_dim)


@dataclass(frozen=True, slots=True)
class StateSpec:
    """One module's state: of its convolution, and of the rule behind that, if there is one."""

    convolution: ConvolutionSpec
    rule: RuleSpec | None = None

    @property
    def numbers(self) -> int:
        return prod(self.convolution.shape) + (0 if self.rule is None else prod(self.rule.shape))


def bytes_per_row(specs: Sequence[StateSpec]) -> int:
    """Returns the bytes of a row's state, of all modules; a checkpoint has as many."""
    return sum(spec.numbers for spec in specs) * ITEM_BYTES
