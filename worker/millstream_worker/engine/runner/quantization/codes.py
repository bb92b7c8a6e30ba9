"""Quantised weights as the CPU multiplies them, made of `WeightCodes` when a model is loaded. The layout is
native/src/quantized.cpp's: panels of 16 outputs, in which four inputs of an output lie side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from millstream_worker.engine.runner.quantization.weight_codes import (
    GROUP,
    WeightCodes,
    weight_codes,
    weights_of,
)

PANEL = 16  # outputs
_MOST = 127  # of a code of 8 bits
_OUTPUTS = 1024  # quantised at a time: a weight is there once, and may be large
# Part of a weight's norm that codes may change. Rounding them comes to 0.013 as a rule; more are scales that
# float16 rounds to a few bits, or to nothing.
_WORST = 0.025


class OutOfRange(ValueError):
    """Float16 does not hold the scales of a weight: that of a group with a number above 8.3 million, or those
    of a weight whose numbers are all so small that its scales lose their bits. The message says which."""


@dataclass(frozen=True, slots=True, eq=False)
class Codes:
    """One weight. What is missing of a panel, or of 32 inputs, is 0."""

    codes: Tensor  # int8 [panels, inputs / 4, 16, 4]; of 4 bits uint8 [panels, inputs / 8, 16, 4]
    scales: Tensor  # float16 [panels, groups, 16]
    offsets: Tensor | None  # likewise
    outputs: int
    inputs: int

    @property
    def bits(self) -> int:
        return 4 if self.codes.dtype == torch.uint8 else 8

    @property
    def group(self) -> int:
        """Inputs that share a scale."""
        return -(-self.inputs // GROUP) * GROUP // self.scales.shape[1]

    @property
    def kind(self) -> tuple[object, ...]:
        """Equal for weights that can be joined: those of a panel that is not whole can with none."""
        part = id(self.codes) if self.outputs % PANEL else 0
        return self.bits, self.group, self.offsets is None, self.inputs, part

    def panels(self, first: int, end: int) -> Codes:
        """Those panels of it."""
        offsets = None if self.offsets is None else self.offsets[first:end]
        outputs = min(end * PANEL, self.outputs) - first * PANEL
        return Codes(self.codes[first:end], self.scales[first:end], offsets, outputs, self.inputs)

    def dequantized(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """[outputs, inputs]"""
        offsets = None if self.offsets is None else self.offsets.transpose(1, 2)
        weight = weights_of(self.codes.transpose(1, 2), self.scales.transpose(1, 2), offsets)
        return weight.flatten(0, 1)[: self.outputs, : self.inputs].to(dtype).contiguous()

    def rows(self, outputs: Tensor, dtype: torch.dtype) -> Tensor:
        """[..., inputs], dequantised, of outputs [...]: what an embedding looks up."""
        panel, lane = outputs // PANEL, outputs % PANEL
        offsets = None if self.offsets is None else self.offsets[panel, :, lane]
        weight = weights_of(self.codes[panel, :, lane], self.scales[panel, :, lane], offsets)
        return weight[..., : self.inputs].to(dtype)


def in_panels(weight: WeightCodes) -> Codes:
    """Returns the same weight in the CPU's layout, in memory of its own."""
    outputs = len(weight.codes)
    words = weight.codes.contiguous().view(torch.int32).squeeze(-1)  # four bytes move as one
    panels = _beside(words).view(weight.codes.dtype)
    codes = panels.reshape(*panels.shape[:2], PANEL, -1)
    offsets = None if weight.offsets is None else _beside(weight.offsets)
    return Codes(codes, _beside(weight.scales), offsets, outputs, weight.inputs)


def pack(codes: Tensor, scales: Tensor, offsets: Tensor | None = None) -> Codes:
    """Returns the panels of `weight_codes`."""
    return in_panels(weight_codes(codes, scales, offsets))


def quantize(weight: Tensor) -> Codes:
    """A floating weight [outputs, inputs] in 8 bits: each group's largest number gets the largest code.
    Raises OutOfRange."""
    parts: list[Codes] = []
    lost = norm = 0.0
    for part in torch.split(weight.detach(), _OUTPUTS):
        parts.append(_quantized(part))
        if not torch.isfinite(parts[-1].scales).all():
            largest = part.abs().max().item()
            raise OutOfRange(f"{largest:.3g} is beyond scales of float16, or no number")
        lost += float((parts[-1].dequantized() - part).square().sum())
        norm += float(part.float().square().sum())
    if lost > _WORST**2 * norm:
        raise OutOfRange(f"numbers of a norm of {norm**0.5:.3g} are too small for scales of float16")
    return join(parts)


def join(parts: Sequence[Codes]) -> Codes:
    """Weights of one kind, one after the other: of whole panels but for the last."""
    offsets = [part.offsets for part in parts if part.offsets is not None]
    return Codes(
        torch.cat([part.codes for part in parts]),
        torch.cat([part.scales for part in parts]),
        torch.cat(offsets) if offsets else None,
        sum(part.outputs for part in parts),
        parts[0].inputs,
    )


def _quantized(weight: Tensor) -> Codes:
    padded = functional.pad(weight.float(), (0, -weight.shape[1] % GROUP))
    groups = padded.reshape(len(weight), -1, GROUP)
    scales = (groups.abs().amax(-1) / _MOST).half()
    inverse = torch.where(scales > 0, 1 / scales.float(), 0)
    codes = (groups * inverse[..., None]).round().clamp(-_MOST, _MOST).to(torch.int8)
    return pack(codes.flatten(1)[:, : weight.shape[1]], scales)


def _beside(numbers: Tensor) -> Tensor:
    """Returns [panels, n, 16] of [outputs, n]."""
    padded = functional.pad(numbers, (0, 0, 0, -numbers.shape[0] % PANEL))
    return padded.reshape(-1, PANEL, padded.shape[1]).transpose(1, 2).contiguous()
