"""The shape of one layer's attention, and of its keys and values."""

from __future__ import annotations

from dataclasses import dataclass, replace


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
