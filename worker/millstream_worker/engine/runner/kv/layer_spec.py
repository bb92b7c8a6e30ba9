"""Describes the shape of one layer's attention, and of its keys and values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch

from millstream_worker.engine.runner.kv.kv_format import KVFormat


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One layer's attention. It computes softmax(softcap(scale · q·k)) · v over the keys a token may see."""

    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    scale: float
    window: int | None = None  # newest tokens a token sees, itself included; None: all before it
    softcap: float | None = None  # scores become softcap * tanh(score / softcap)
    sinks: bool = False  # one learned logit per head joins the softmax and takes weight from the values
    group: int = 0  # which of the plan's block tables holds this layer
    kv_format: KVFormat = KVFormat.AS_COMPUTED
    source: int | None = None  # the layer whose keys and values it reads; None: it stores its own

    @property
    def shape(self) -> LayerSpec:
        """Returns the layer without what does not matter for the indices and masks of a step."""
        form = KVFormat.AS_COMPUTED
        return replace(self, scale=1.0, softcap=None, sinks=False, kv_format=form, source=None)

    def token_bytes(self, dtype: torch.dtype) -> int:
        """Returns the bytes that it stores of one token: key and value, computed in `dtype`, and scales."""
        if self.source is not None:
            return 0
        return self.kv_heads * self.kv_format.token_bytes(self.key_dim, self.value_dim, dtype)


def kv_name(layers: Iterable[LayerSpec], dtype: torch.dtype) -> str:
    """Returns the format for people: "bfloat16", "int8", or both."""
    names = {
        str(dtype).removeprefix("torch.")
        if layer.kv_format is KVFormat.AS_COMPUTED
        else layer.kv_format.value
        for layer in layers
    }
    return "+".join(sorted(names, reverse=True))
