"""The tensors that together are one quantised weight, found by their names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from millstream_worker.engine.runner.checkpoint.source_weights import StoredTensor

ITSELF = ""  # the part that has the weight's own name
_OF_WEIGHT = (  # what is added to the name of a weight
    "_packed", "_global_scale", "_scale", "_scale_inv", "_scale_2", "_zero_point", "_shape", "_g_idx",
    "_blocks", "_scales", ".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map",
    ".quant_state.bitsandbytes__nf4", ".quant_state.bitsandbytes__fp4",
)  # fmt: skip
_OF_MODULE = ("qweight", "qzeros", "scales", "g_idx", "pre_quant_scale", "SCB")  # instead of "weight"
_NUMBERS = ("_packed", "_blocks", "qweight")
_DROPPED = {  # scales of what is not a weight
    "input_scale", "input_zero_point", "input_global_scale", "activation_scale", "output_scale",
    "output_zero_point", "q_scale", "k_scale", "v_scale", "weight_format",
}  # fmt: skip


class UnreadWeight(Exception):
    """A quantised weight cannot be read. The message names the tensor, what is wrong, and what to do."""


@dataclass(frozen=True, slots=True)
class FormatFacts:
    """Facts that tensors do not tell of themselves. `blocks`: outputs and inputs that share a scale;
    `group`: inputs that do; `zeros_less_one`: GPTQ's first version stores zeros so."""

    blocks: tuple[tuple[int, int], ...] = ()
    group: int | None = None
    zeros_less_one: bool = True


@dataclass(frozen=True, slots=True)
class Parts:
    """One weight's tensors by what their names have beside the weight's."""

    weight: str
    tensors: Mapping[str, StoredTensor]
    facts: FormatFacts

    def __contains__(self, part: str) -> bool:
        return part in self.tensors

    def dtype(self, part: str) -> str:
        """Returns the type as safetensors names it; "" where the part is missing."""
        return self.tensors[part].dtype if part in self.tensors else ""

    def shape(self, part: str) -> tuple[int, ...]:
        """Raises UnreadWeight where the part is missing."""
        if part not in self.tensors:
            stem = self.weight.rpartition(".")[0]
            have = ", ".join(sorted(one.name.removeprefix(f"{stem}.") for one in self.tensors.values()))
            raise self.unread(f"has no {self._named(part)} beside {have}")
        return self.tensors[part].shape

    def sides(self, part: str) -> tuple[int, int]:
        """Returns the shape of a part that has two sides. Raises UnreadWeight for others."""
        shape = self.shape(part)
        if len(shape) != 2:
            raise self.unread(f"{self._named(part)} is {list(shape)}, and has two sides in this format")
        return shape[0], shape[1]

    def read(self, part: str, device: torch.device, *index: Any) -> Tensor:
        """Returns what `index` takes of a part: everything without one."""
        found: Tensor = self.tensors[part].read(*index)
        return found.to(device)

    def expect(self, part: str, *shapes: tuple[int, ...], dtypes: Iterable[str] = ()) -> None:
        """Raises UnreadWeight for a part of none of the shapes or types; no types: any."""
        given = self.shape(part)
        if given not in shapes:
            raise self.unread(f"{self._named(part)} is {list(given)} instead of {list(shapes[0])}")
        if (allowed := tuple(dtypes)) and self.dtype(part) not in allowed:
            raise self.unread(f"{self._named(part)} is of type {self.dtype(part)} instead of {allowed[0]}")

    def unread(self, why: str) -> UnreadWeight:
        """Returns the exception that says why it cannot be read."""
        return UnreadWeight(
            f"{self.weight}: {why}; fetch the files anew, or use the model in bfloat16, or a GGUF file"
        )

    def _named(self, part: str) -> str:
        stem = self.weight.rpartition(".")[0]
        return f"{stem}.{part}" if part in _OF_MODULE else self.weight + part


def gathered(
    stored: Mapping[str, StoredTensor], facts: FormatFacts
) -> tuple[dict[str, Parts], frozenset[str]]:
    """Returns the weights that have more than one tensor, or one of a type that only quantised weights have,
    by their names, and the names of tensors that belong to no weight."""
    found: dict[str, dict[str, StoredTensor]] = {}
    for name, tensor in stored.items():
        weight, part = _of(name)
        found.setdefault(weight, {})[part] = tensor
    weights = {weight: Parts(weight, parts, facts) for weight, parts in found.items() if _quantized(parts)}
    dropped = (name for name in stored if name.rpartition(".")[2] in _DROPPED)
    return weights, frozenset(dropped if weights else ())


def _of(name: str) -> tuple[str, str]:
    """Returns the weight that a tensor may belong to, and what its name has beside it."""
    stem, _, last = name.rpartition(".")
    if last in _OF_MODULE:
        return f"{stem}.weight", last
    part = next((part for part in _OF_WEIGHT if name.endswith(part)), ITSELF)
    return name.removesuffix(part), part


def _quantized(parts: Mapping[str, StoredTensor]) -> bool:
    itself = parts.get(ITSELF)
    if itself is None:  # parameters of other names may merely end as scales do
        return not parts.keys().isdisjoint(_NUMBERS)
    floating = itself.dtype in ("F64", "F32", "F16", "BF16")
    if len(parts) == 1:
        return itself.dtype.startswith("F8") or (not floating and itself.name.endswith(".weight"))
    return not floating
