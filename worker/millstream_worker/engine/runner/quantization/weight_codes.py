"""A quantised weight as whole numbers, output by output: the form in which a checkpoint is kept, from which
each device makes what it computes with."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

GROUP = 32  # inputs of an output that share a scale as a rule; codes are padded to whole groups
SIDE_BY_SIDE = 4  # inputs
_OUTPUTS = 1024  # dequantised at a time
_MIDDLE = 8  # of codes of 4 bits: it stands for 0


@dataclass(frozen=True, slots=True, eq=False)
class WeightCodes:
    """One weight [outputs, inputs]. In each group of 32 or 16 inputs of an output it is scale * code +
    offset, or, of codes of 4 bits without offsets, scale * (code - 8)."""

    codes: Tensor  # int8 [outputs, inputs / 4, 4]; of 4 bits uint8 [outputs, inputs / 8, 4], see `bytes_of`
    scales: Tensor  # float16 [outputs, groups]
    offsets: Tensor | None  # likewise
    inputs: int

    def dequantized(self, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Returns [outputs, inputs] on the device, which computes it, some outputs at a time."""
        weight = torch.empty(len(self.codes), self.inputs, dtype=dtype, device=device)
        for first in range(0, len(weight), _OUTPUTS):
            some = slice(first, first + _OUTPUTS)
            offsets = None if self.offsets is None else self.offsets[some].to(device)
            part = weights_of(self.codes[some].to(device), self.scales[some].to(device), offsets)
            weight[some] = part[:, : self.inputs]
        return weight


def weight_codes(codes: Tensor, scales: Tensor, offsets: Tensor | None = None) -> WeightCodes:
    """Returns the weight of codes [outputs, inputs], int8, or of 4 bits as uint8. Scales and offsets
    [outputs, groups] are rounded to float16."""
    inputs = codes.shape[1]
    return WeightCodes(bytes_of(codes), scales.half(), None if offsets is None else offsets.half(), inputs)


def bytes_of(codes: Tensor) -> Tensor:
    """Returns [outputs, steps, 4] of codes [outputs, inputs]. Of 4 bits a byte has two, the low one of input
    8 * step + i, the high one of 8 * step + 4 + i."""
    padded = functional.pad(codes, (0, -codes.shape[1] % GROUP))
    steps = padded.reshape(len(codes), -1, SIDE_BY_SIDE)
    if codes.dtype == torch.uint8:
        steps = steps[:, ::2] | steps[:, 1::2] << 4
    return steps.contiguous()


def weights_of(codes: Tensor, scales: Tensor, offsets: Tensor | None) -> Tensor:
    """Returns float32 [..., inputs] of codes [..., inputs / 4 or 8, 4], scales and offsets [..., groups]."""
    if codes.dtype == torch.uint8:
        # As floats: torch compiles no `stack` of bytes but calls its own, and what it calls is not replayed.
        halves = torch.stack(((codes & 15).float(), (codes >> 4).float()), -2)
        codes = halves.flatten(-3, -2) - (_MIDDLE if offsets is None else 0)
    groups = codes.reshape(*scales.shape, -1).float()
    weight = groups * scales.float()[..., None]
    if offsets is not None:
        weight = weight + offsets.float()[..., None]
    return weight.flatten(-2)
