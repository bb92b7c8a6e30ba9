"""The blocks of GGUF's quantised types, taken apart into codes, scales and offsets (see
`WeightCodes`).

The layouts are those of llama.cpp's ggml-common.h, as `gguf.quants` reads them. A code keeps all its bits.
The scales of Q4_K, Q5_K and Q6_K are products of two numbers, which become float16: a weight changes by at
most 1/2048 of itself, and of its offset.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import Q4_K
from numpy.typing import NDArray

from millstream_worker.engine.runner.quantization.weight_codes import WeightCodes, weight_codes

Bytes = NDArray[np.uint8]
Numbers = NDArray[np.float32]
# Codes [blocks, inputs] in int8, or of 4 bits in uint8; scales [blocks, groups] and offsets likewise.
Parts = tuple[NDArray[np.uint8] | NDArray[np.int8], Numbers, Numbers | None]

_OUTPUTS = 2048  # taken apart at a time
_Type = GGMLQuantizationType


def unpack(data: Bytes, kind: GGMLQuantizationType) -> WeightCodes:
    """Returns the weight of `data` [outputs, bytes], of one of `KINDS`."""
    parts = [_unpacked(data[first : first + _OUTPUTS], kind) for first in range(0, len(data), _OUTPUTS)]
    offsets = [part.offsets for part in parts if part.offsets is not None]
    return WeightCodes(
        torch.cat([part.codes for part in parts]),
        torch.cat([part.scales for part in parts]),
        torch.cat(offsets) if offsets else None,
        parts[0].inputs,
    )


def _unpacked(data: Bytes, kind: GGMLQuantizationType) -> WeightCodes:
    _, size = GGML_QUANT_SIZES[kind]
    codes, scales, offsets = KINDS[kind](np.ascontiguousarray(data).reshape(-1, size))
    rows = len(data)
    beside = None if offsets is None else torch.from_numpy(offsets.reshape(rows, -1))
    return weight_codes(
        torch.from_numpy(np.ascontiguousarray(codes).reshape(rows, -1)),
        torch.from_numpy(scales.reshape(rows, -1)),
        beside,
    )


def _q5_0(blocks: Bytes) -> Parts:
    codes = _low_then_high(blocks[:, 6:]) | _fifth(blocks[:, 2:6])
    return codes.view(np.int8) - np.int8(16), _half(blocks, 0), None


def _q5_1(blocks: Bytes) -> Parts:
    codes = _low_then_high(blocks[:, 8:]) | _fifth(blocks[:, 4:8])
    return codes.view(np.int8), _half(blocks, 0), _half(blocks, 2)


def _q5_k(blocks: Bytes) -> Parts:
    low = _low_then_high(blocks[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    high = blocks[:, 16:48].reshape(-1, 1, 32) >> np.arange(8, dtype=np.uint8)[:, None] & 1
    return (low | high << 4).view(np.int8), *_scales_of_k(blocks)


def _q6_k(blocks: Bytes) -> Parts:
    low = _low_then_high(blocks[:, :128].reshape(-1, 2, 64)).reshape(-1, 2, 4, 32)
    high = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3
    scales = _half(blocks, 208) * blocks[:, 192:208].view(np.int8)
    return (low | high << 4).view(np.int8) - np.int8(32), scales, None


def _scales_of_k(blocks: Bytes) -> tuple[Numbers, Numbers]:
    scales, offsets = Q4_K.get_scale_min(blocks[:, 4:16].copy())
    return _half(blocks, 0) * scales, -_half(blocks, 2) * offsets


def _half(blocks: Bytes, start: int) -> Numbers:
    """[blocks, 1]"""
    return blocks[:, start : start + 2].copy().view(np.float16).astype(np.float32)


def _low_then_high(packed: Bytes) -> Bytes:
    """The low halves of the last axis' bytes, and then the high ones."""
    return np.concatenate((packed & np.uint8(15), packed >> np.uint8(4)), axis=-1)


def _fifth(bits: Bytes) -> Bytes:
    """[blocks, 32]: a bit each, as 16 or 0."""
    return np.unpackbits(bits, axis=-1, bitorder="little") << np.uint8(4)


KINDS: dict[GGMLQuantizationType, Callable[[Bytes], Parts]] = {
    _Type.Q8_0: lambda blocks: (blocks[:, 2:].view(np.int8), _half(blocks, 0), None),
    _Type.Q4_0: lambda blocks: (_low_then_high(blocks[:, 2:]), _half(blocks, 0), None),
    _Type.Q4_1: lambda blocks: (_low_then_high(blocks[:, 4:]), _half(blocks, 0), _half(blocks, 2)),
    _Type.Q5_0: _q5_0,
    _Type.Q5_1: _q5_1,
    _Type.Q4_K: lambda blocks: (_low_then_high(blocks[:, 16:].reshape(-1, 4, 32)), *_scales_of_k(blocks)),
    _Type.Q5_K: _q5_k,
    _Type.Q6_K: _q6_k,
}
