"""Defines how keys and values lie in the storage: as they are computed, or as codes of 8 bits.

INT8 has a scale for each token and head. Keys are asymmetric: number = code · scale + middle, where `middle`
lies between the least and the largest number; for values, which lie around 0, number = code · scale. A
token's codes depend on nothing but its own numbers: chunks, shared prefixes and copies of blocks hold the
same bits whoever wrote them.
"""

from __future__ import annotations

from enum import Enum

import torch
from torch import Tensor

# other bits of the same numbers need another name: blocks are found by it
LAYOUT = "int8, keys with a middle"
MOST = 127  # of a code's magnitude
KEY_SCALES, VALUE_SCALES = 2, 1  # of a token and head: scale and middle, or scale
LEAST_HALF = 1e-18  # of the distance from middle to end: numbers closer together are stored as their middle


class KVFormat(Enum):
    AS_COMPUTED = "auto"
    INT8 = "int8"

    def code_dtype(self, computed: torch.dtype) -> torch.dtype:
        """Returns the dtype that keys or values are stored as, where they are computed in `computed`."""
        return computed if self is KVFormat.AS_COMPUTED else torch.int8

    def token_bytes(self, key_dim: int, value_dim: int, computed: torch.dtype) -> int:
        """Returns the bytes of one token's key and value in one head, their scales included."""
        if self is KVFormat.AS_COMPUTED:
            return (key_dim + value_dim) * computed.itemsize
        return key_dim + value_dim + (KEY_SCALES + VALUE_SCALES) * torch.bfloat16.itemsize


def quantize(numbers: Tensor, scales: int) -> tuple[Tensor, Tensor]:
    """Returns [..., dim] as codes int8 [..., dim] and scales bfloat16 [..., scales], of keys or of values.
    Every backend's store computes this, to the last bit. What holds a number that is not finite has NaN as
    its scale."""
    numbers = numbers.float()
    least, largest = numbers.aminmax(dim=-1, keepdim=True)
    middle = (
        ((least + largest) * 0.5).bfloat16() if scales == KEY_SCALES else torch.zeros_like(least).bfloat16()
    )
    half = torch.maximum(largest - middle.float(), middle.float() - least)
    scale = torch.where(half > LEAST_HALF, _rounded_up(half * (1 / MOST)), 0.0)
    scale = torch.where(half.isfinite(), scale, torch.nan)
    inverse = torch.where(scale > 0, 1 / scale, 0.0)
    codes = ((numbers - middle.float()) * inverse).round()  # half to even
    return codes.nan_to_num().to(torch.int8), torch.cat((scale.bfloat16(), middle), dim=-1)[..., :scales]


def dequantize(codes: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns the numbers of codes [..., dim] and their scales."""
    scale, *middle = scales.float()[..., None].unbind(-2)
    numbers = codes.float() * scale
    return (torch.addcmul(middle[0], codes.float(), scale) if middle else numbers).to(dtype)


def _rounded_up(positive: Tensor) -> Tensor:
    """Rounds float32 to the next bfloat16 that is not less: no code exceeds `MOST`."""
    return ((positive.view(torch.int32) + 0xFFFF) & ~0xFFFF).view(torch.float32)
