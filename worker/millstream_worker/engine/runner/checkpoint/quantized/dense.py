"""A folder's weights as they would be without quantisation: each is read when it is asked for, a part of its
outputs at a time, so that beside the result there are some MiB."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from millstream_worker.engine.runner.checkpoint.quantized.bitsandbytes_format import Blocks4
from millstream_worker.engine.runner.checkpoint.quantized.float_formats import (
    ExpertsFloat4,
    Float4,
    Float8,
)
from millstream_worker.engine.runner.checkpoint.quantized.integer_formats import (
    AWQ,
    GPTQ,
    IntQuantized,
    PackQuantized,
)
from millstream_worker.engine.runner.checkpoint.quantized.parts import ITSELF, FormatFacts, Parts, gathered
from millstream_worker.engine.runner.checkpoint.source_weights import open_weights, stored_tensors

Format = AWQ | Blocks4 | ExpertsFloat4 | Float4 | Float8 | GPTQ | IntQuantized | PackQuantized
OfCodes = AWQ | Float4 | GPTQ | IntQuantized | PackQuantized
_AT_ONCE = 2**22  # numbers
_STEP = 32  # outputs: whole words of each format


class DenseWeight:
    """One quantised weight, read as `dtype` on a device by `weight[...]`."""

    def __init__(self, parts: Parts, dtype: torch.dtype, device: torch.device) -> None:
        self._parts, self._dtype, self._device = parts, dtype, device

    @cached_property
    def format(self) -> Format:
        """Raises UnreadWeight."""
        return _format_of(self._parts)

    def get_shape(self) -> list[int]:
        """Raises UnreadWeight."""
        return list(self.format.shape)

    def pieces(self) -> Iterator[tuple[int, int]]:
        """Yields the first and the end of outputs that are read at once."""
        *_, outputs, inputs = self.format.shape
        if isinstance(self.format, ExpertsFloat4):
            outputs, inputs = inputs, outputs
        some = max(_STEP, _AT_ONCE // max(1, inputs) // _STEP * _STEP)
        for first in range(0, outputs, some):
            yield first, min(first + some, outputs)

    def __getitem__(self, index: Any) -> Tensor:
        """Returns all of it."""
        weight = torch.empty(self.format.shape, dtype=self._dtype, device=self._device)
        experts = range(len(weight)) if weight.ndim == 3 else (None,)
        for expert in experts:
            for first, end in self.pieces():
                self._fill(weight, expert, first, end)
        return weight

    def _fill(self, weight: Tensor, expert: int | None, first: int, end: int) -> None:
        match self.format:
            case ExpertsFloat4() as experts if expert is not None:
                experts.fill(weight, expert, first, end)
            case Float8() as float8:
                place = weight if expert is None else weight[expert]
                place[first:end] = float8.grid(first, end, self._device, expert).dequantized()
            case Blocks4() as blocks:
                weight[first:end] = blocks.dequantized(first, end, self._device)
            case AWQ() | Float4() | GPTQ() | IntQuantized() | PackQuantized() as codes:
                weight[first:end] = codes.grid(first, end, self._device).dequantized()


@contextlib.contextmanager
def open_dense(
    folder: Path, settings: Mapping[str, Any] | None, dtype: torch.dtype, device: torch.device
) -> Iterator[dict[str, Any]]:
    """Yields all weights by name, each with `[...]` and `get_shape()`, quantised ones as `DenseWeight`.
    `settings`: the configuration's quantization_config. They can be read until the context ends."""
    parts, dropped = gathered(stored_tensors(folder), facts_of(settings or {}))
    inside = {tensor.name for one in parts.values() for tensor in one.tensors.values()} | dropped
    with open_weights(folder) as plain:
        weights = {name: weight for name, weight in plain.items() if name not in inside}
        yield weights | {name: DenseWeight(one, dtype, device) for name, one in parts.items()}


def forms_of(weights: Mapping[str, Any]) -> str:
    """Returns the names of the formats of quantised weights, those of the most numbers first."""
    numbers: Counter[str] = Counter()
    for weight in weights.values():
        if isinstance(weight, DenseWeight):
            numbers[weight.format.form] += prod(weight.format.shape)
    return "+".join(form for form, _ in numbers.most_common())


def facts_of(settings: Mapping[str, Any]) -> FormatFacts:
    """Returns what a quantization_config says of groups. Values of other types are as none."""
    blocks, sizes = [settings.get("weight_block_size")], [settings.get("group_size")]
    groups = settings.get("config_groups")
    for group in groups.values() if isinstance(groups, dict) else ():
        weights = group.get("weights") if isinstance(group, dict) else None
        if isinstance(weights, dict):
            blocks.append(weights.get("block_structure"))
            sizes.append(weights.get("group_size"))
    return FormatFacts(
        tuple((block[0], block[1]) for block in blocks if isinstance(block, list) and _is_pair(block)),
        next((size for size in sizes if type(size) is int and size > 0), None),
        settings.get("checkpoint_format") != "gptq_v2",
    )


def _is_pair(block: list[Any]) -> bool:
    return len(block) == 2 and all(type(one) is int and one > 0 for one in block)


def _format_of(parts: Parts) -> Format:
    if "_blocks" in parts or "_scales" in parts:
        return ExpertsFloat4(parts)
    if "pre_quant_scale" in parts:
        raise parts.unread("its inputs have scales of their own (pre_quant_scale), which are not computed")
    if "qweight" in parts or "qzeros" in parts:
        return GPTQ(parts) if parts.sides("qweight")[1] == parts.sides("scales")[1] else AWQ(parts)
    if ".absmax" in parts or ".quant_map" in parts:
        return Blocks4(parts)
    if "_packed" in parts:
        return PackQuantized(parts) if parts.dtype("_packed") == "I32" else Float4(parts)
    if parts.dtype(ITSELF).startswith("F8_E"):
        return Float8(parts)
    if parts.dtype(ITSELF) == "U8":
        return Float4(parts)
    if parts.dtype(ITSELF) == "I8" and "SCB" not in parts:
        return IntQuantized(parts)
    names = ", ".join(sorted(tensor.name for tensor in parts.tensors.values()))
    raise parts.unread(f"its tensors ({names}) are of no format that is read")
