"""How keys and values lie in the storage: as they are computed, or as codes of 8 bits.

INT8 is asymmetric, with a scale for each token and head: number = code · scale + middle, where `middle` lies
between the least and the largest number. A token's codes depend on nothing but its own numbers: chunks,
shared prefixes and copies of blocks hold the same bits whoever wrote them.
"""

from __future__ import annotations

from enum import Enum

import torch
from torch import Tensor

MOST = 127  # of a code's magnitude
SCALES = 2  # of a token and head: scale, middle
LEAST_HALF = 1e-30  # of the distance from middle to end: numbers closer together are stored as their middle


class KVFormat(Enum):
    AS_COMPUTED = "auto"
    INT8 = "int8"

    def code_dtype(self, computed: torch.dtype) -> torch.dtype:
        """What a key's or a value's numbers are stored as, where they are computed in `computed`."""
        return computed if self is KVFormat.AS_COMPUTED else torch.int8

    def head_bytes(self, dim: int, computed: torch.dtype) -> int:
        """Of one token's key or value in one head, its scales included."""
        if self is KVFormat.AS_COMPUTED:
            return dim * computed.itemsize
        return dim + SCALES * torch.bfloat16.itemsize


def quantize(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """[..., dim] as codes int8 [..., dim] and scales bfloat16 [..., 2]. Every backend's store computes this,
    to the last bit. What holds a number that is not finite has scales that are none."""
    numbers = numbers.float()
    least, largest = numbers.aminmax(dim=-1, keepdim=True)
    middle = ((least + largest) * 0.5).bfloat16()
    half = torch.maximum(largest - middle.float(), middle.float() - least)
    scale = torch.where(half > LEAST_HALF, _rounded_up(half * (1 / MOST)), 0.0)
    inverse = torch.where(scale > 0, 1 / scale, 0.0)
    codes = ((numbers - middle.float()) * inverse).round()  # half to even
    return codes.nan_to_num().to(torch.int8), torch.cat((scale.bfloat16(), middle), dim=-1)


def dequantize(codes: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """The numbers of codes [..., dim] and scales [..., 2]."""
    scale, middle = scales.float().unbind(-1)
    return torch.addcmul(middle[..., None], codes.float(), scale[..., None]).to(dtype)


def _rounded_up(positive: Tensor) -> Tensor:
    """Float32 to the next bfloat16 that is not less: no code exceeds `MOST`."""
    return ((positive.view(torch.int32) + 0xFFFF) & ~0xFFFF).view(torch.float32)
