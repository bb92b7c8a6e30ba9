"""What every attention backend offers: one call per step, then one call per layer.

A backend owns how a step's attention is computed, and writes the step's keys and values into the
`KVStorage` whose layout it is built for. It knows layers by number and no model code.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch

from millstream_worker.engine.brain.plan import Plan


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """What one layer's attention computes: softmax(softcap(scale · q·k)) · v over the keys a token may
    see."""

    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    scale: float
    window: int | None = None  # newest tokens a token sees, itself included; None: all before it
    softcap: float | None = None  # scores become softcap * tanh(score / softcap)
    sinks: bool = False  # one learned logit per head joins the softmax and takes weight from the values
    group: int = 0  # which of the plan's block tables holds this layer

    @property
    def shape(self) -> LayerSpec:
        """The layer without what does not matter for the indices and masks of a step."""
        return replace(self, scale=1.0, softcap=None, sinks=False)

    def block_elements(self, block_size: int) -> int:
        """Numbers stored per block: keys and values of `block_size` tokens."""
        return self.kv_heads * block_size * (self.key_dim + self.value_dim)


class AttentionBackend(Protocol):
    """Built over one `KVStorage`; used by one runner, from one thread."""

    def begin(self, plan: Plan) -> None:
        """Take in the step: what all its layers share (indices, masks, tables on the device) is made here."""

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Store the step's keys and values, then attend from its tokens to all that their rows have stored.

        query [T, heads, key_dim], key [T, kv_heads, key_dim], value [T, kv_heads, value_dim], of any
        strides with the last one 1; sinks [heads] where the layer has them. Returns [T, heads, value_dim],
        contiguous. T may exceed the step's tokens (compiled code pads a single one): what is returned for the
        others is arbitrary.
        """
        ...
