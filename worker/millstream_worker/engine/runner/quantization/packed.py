"""A checkpoint whose quantised weights are `WeightCodes`, for any device: one file of safetensors beside
config and tokenizer.

packed.safetensors    <weight>.codes, <weight>.scales, <weight>.offsets of quantised weights; others by their
                      own names. Its metadata has the names of the types that the weights came from.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from millstream_worker.engine.runner.quantization.weight_codes import WeightCodes

_FILE = "packed.safetensors"
_TYPES = "types"
_PARTS = ("codes", "scales", "offsets")


@dataclass(frozen=True, slots=True)
class PackedWeights:
    """All weights of a checkpoint, by their names in the model."""

    codes: Mapping[str, WeightCodes]
    others: Mapping[str, Tensor]
    types: str  # the names of their types, those of the most weights first


def is_packed(folder: Path) -> bool:
    return (folder / _FILE).is_file()


def write_packed(folder: Path, weights: PackedWeights) -> None:
    tensors = dict(weights.others)
    sizes = {}
    for name, codes in weights.codes.items():
        sizes[name] = codes.inputs
        for part, tensor in zip(_PARTS, (codes.codes, codes.scales, codes.offsets), strict=True):
            if tensor is not None:
                tensors[f"{name}.{part}"] = tensor
    save_file(tensors, folder / _FILE, {_TYPES: weights.types, "sizes": json.dumps(sizes)})


def read_packed(folder: Path) -> PackedWeights:
    """Codes are views of the file, which stays mapped as long as one lives; others have their own memory."""
    with safe_open(folder / _FILE, framework="pt") as file:
        metadata = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
    codes = {}
    for name, inputs in json.loads(metadata["sizes"]).items():
        packed, scales, offsets = (tensors.pop(f"{name}.{part}", None) for part in _PARTS)
        codes[name] = WeightCodes(packed, scales, offsets, inputs)
    others = {name: tensor.clone() for name, tensor in tensors.items()}
    return PackedWeights(codes, others, metadata[_TYPES])


def named(types: Counter[str]) -> str:
    return "+".join(kind for kind, _ in types.most_common())
