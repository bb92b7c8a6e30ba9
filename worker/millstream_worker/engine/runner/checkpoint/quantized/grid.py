"""Some outputs of a quantised weight as codes with scales: what all formats of linear layers come to, but for
bitsandbytes'. Weights are computed in float32, in the order of the formats' own code: the same to a bit."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# Numbers of 4 bits of MXFP4 and NVFP4 (E2M1): the highest bit is the sign.
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
BITS_OF_WORD = 32


@dataclass(frozen=True, slots=True)
class Grid:
    """Outputs of a weight: (code - zero) * scale, of the group of each input."""

    codes: Tensor  # whole numbers or floats [outputs, inputs]
    scales: Tensor  # float32 [outputs, groups]; or [1, groups] or [outputs, 1] for all
    zeros: Tensor | None = None  # likewise
    group: int = 0  # inputs; 0: all
    of_input: Tensor | None = None  # the group of each input, where these are not in order

    def dequantized(self) -> Tensor:
        """Returns float32 [outputs, inputs]."""
        codes = self.codes.float()
        if self.zeros is not None:
            codes = codes - self._spread(self.zeros)
        return codes * self._spread(self.scales)

    def _spread(self, numbers: Tensor) -> Tensor:
        """Returns one for each input."""
        inputs = self.codes.shape[1]
        if numbers.shape[1] == 1:
            return numbers.float()
        if self.of_input is not None:
            return numbers.float()[:, self.of_input]
        return numbers.float().repeat_interleave(self.group, 1)[:, :inputs]


def nibbles(data: Tensor) -> Tensor:
    """Returns uint8 [..., 2 n] of bytes [..., n], the low half of each first."""
    data = data.view(torch.uint8)
    return torch.stack((data & 15, data >> 4), -1).flatten(-2)


def unpacked(words: Tensor, bits: int, axis: int) -> Tensor:
    """Returns the numbers of so many bits, a divisor of 32, that int32 words [a, b] have along an axis, the
    lowest bits first, as uint8."""
    shifts = torch.arange(0, BITS_OF_WORD, bits, dtype=torch.int32, device=words.device)
    shifts = shifts.view(-1, *[1] * (words.ndim - axis - 1))
    numbers: Tensor = torch.bitwise_right_shift(words.unsqueeze(axis + 1), shifts) & (2**bits - 1)
    return numbers.to(torch.uint8).flatten(axis, axis + 1)


def e8m0(exponents: Tensor) -> Tensor:
    """Returns the powers of two that bytes are exponents of, in float32."""
    return (exponents.view(torch.uint8).float() - 127).exp2()
