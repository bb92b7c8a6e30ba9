"""Quantised weights as `WeightCodes`: in the bits of their files, as far as the layout of codes has them."""

from __future__ import annotations

import torch
from torch import Tensor

from millstream_worker.engine.runner.checkpoint.quantized.dense import DenseWeight, OfCodes
from millstream_worker.engine.runner.checkpoint.quantized.grid import Grid
from millstream_worker.engine.runner.quantization.weight_codes import GROUP, WeightCodes, weight_codes

_CPU = torch.device("cpu")
_SMALL_GROUP = 16
_MIDDLE, _HALF_OF_BYTE = 8, 128  # the codes that stand for 0 without offsets: of 4 bits, of 8 in files
# Part of a weight's norm that scales of float16 may change: they round to 1/2048 of themselves, unless they
# are so small that they lose bits.
_WORST = 1e-3


def has_codes(weight: object) -> bool:
    """True for a weight whose format has codes that are computed as they are. Raises UnreadWeight."""
    return (
        isinstance(weight, DenseWeight)
        and isinstance(weight.format, OfCodes)
        and weight.format.own_bits
        and _fits(weight.format)
    )


def code_bytes(weight: DenseWeight) -> int:
    """Returns the bytes of its codes, of scales and offsets, at most."""
    found = weight.format
    assert isinstance(found, OfCodes)
    outputs, inputs = found.shape
    size = _SMALL_GROUP if found.group == _SMALL_GROUP else GROUP
    return outputs * (inputs // (1 if _in_bytes(found) else 2) + 4 * -(-inputs // size))


def codes_of(weight: DenseWeight) -> WeightCodes | None:
    """Returns the codes of a weight that has them; None where float16 does not hold its scales."""
    found = weight.format
    assert isinstance(found, OfCodes)
    parts: list[WeightCodes] = []
    lost = norm = 0.0
    for first, end in weight.pieces():
        grid = found.grid(first, end, _CPU)
        parts.append(_codes_of(grid, wide=_in_bytes(found)))
        want = grid.dequantized()
        lost += float((parts[-1].dequantized(torch.float32, _CPU) - want).square().sum())
        norm += float(want.square().sum())
    return _joined(parts) if lost <= _WORST**2 * norm else None  # no number: None, too


def _fits(found: OfCodes) -> bool:
    group = found.group
    return group >= found.shape[1] or group % GROUP == 0 or (group == _SMALL_GROUP and _in_bytes(found))


def _in_bytes(found: object) -> bool:
    return getattr(found, "bits", 8) == 8


def _codes_of(grid: Grid, *, wide: bool) -> WeightCodes:
    codes, zeros, middle = grid.codes, grid.zeros, 0 if wide else _MIDDLE
    if wide and codes.dtype == torch.uint8:
        codes = (codes.int() - _HALF_OF_BYTE).to(torch.int8)
        zeros = None if zeros is None else zeros.int() - _HALF_OF_BYTE
    scales = _spread(grid.scales, grid)
    if zeros is None or bool((zeros == middle).all()):
        return weight_codes(codes, scales)
    return weight_codes(codes, scales, -_spread(zeros.float(), grid) * scales)


def _spread(numbers: Tensor, grid: Grid) -> Tensor:
    """Returns one for each group of 32 inputs, or of 16: [outputs, groups]."""
    outputs, inputs = grid.codes.shape
    size = _SMALL_GROUP if grid.group == _SMALL_GROUP else GROUP
    groups = -(-inputs // GROUP) * GROUP // size
    if numbers.shape[1] > 1:
        numbers = numbers.repeat_interleave(grid.group // size, 1)[:, :groups]
    return numbers.expand(outputs, groups)


def _joined(parts: list[WeightCodes]) -> WeightCodes:
    """Returns outputs one after the other. Where some parts need offsets, all get them."""
    offsets = None
    if any(part.offsets is not None for part in parts):
        middle = _MIDDLE if parts[0].codes.dtype == torch.uint8 else 0
        offsets = torch.cat([
            -middle * part.scales if part.offsets is None else part.offsets for part in parts
        ])  # fmt: skip
    codes, scales = torch.cat([part.codes for part in parts]), torch.cat([part.scales for part in parts])
    return WeightCodes(codes, scales, offsets, parts[0].inputs)
