"""The paged KV storage: owns the tensors of all layers and how a block lies in them. Knows nothing of rows,
block tables or hashes: whoever asks names blocks and slots.

    keys[layer]    [blocks, kv_heads, block_size, key_dim]
    values[layer]  [blocks, kv_heads, block_size, value_dim]
    key_scales[layer]    [blocks, kv_heads, block_size, 2] bfloat16, of layers in INT8
    value_scales[layer]  [blocks, kv_heads, block_size, 1] bfloat16

Those of a layer with a source are that layer's tensors.

Heads come before tokens, so that one head's keys of a block are one contiguous piece: gathered per (row,
head) they are the operand of a plain matrix product without another copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from millstream_worker.engine.runner.kv.kv_format import KEY_SCALES, VALUE_SCALES, KVFormat
from millstream_worker.engine.runner.kv.layer_spec import LayerSpec

Part = TypeVar("Part")


def bytes_per_block(layers: Sequence[LayerSpec], block_size: int, dtype: torch.dtype) -> int:
    """A block over all layers: 2 (keys, values) x layers x kv_heads x head_dim x tokens x dtype bytes; in
    INT8 a byte a number, and six for each head's scales."""
    return sum(layer.token_bytes(dtype) for layer in layers) * block_size


class KVStorage:
    """Keys and values of `blocks` blocks of `block_size` tokens for every layer; zeros at first."""

    def __init__(
        self,
        layers: Sequence[LayerSpec],
        blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.layers = tuple(layers)
        self.blocks = blocks
        self.block_size = block_size
        self.dtype = dtype
        self.device = device
        self.keys = self._of_layers(lambda layer: self._zeros(layer, layer.key_dim))
        self.values = self._of_layers(lambda layer: self._zeros(layer, layer.value_dim))
        self.key_scales = self._of_layers(lambda layer: self._scales(layer, KEY_SCALES))
        self.value_scales = self._of_layers(lambda layer: self._scales(layer, VALUE_SCALES))

    @property
    def bytes_per_block(self) -> int:
        return bytes_per_block(self.layers, self.block_size, self.dtype)

    def copy_out(self, blocks: Tensor) -> Tensor:
        """The pages of `blocks` [N] as bytes: uint8 [N, bytes_per_block]."""
        count = len(blocks)
        return torch.cat([part[blocks].reshape(count, -1).view(torch.uint8) for part in self.parts()], dim=1)

    def copy_in(self, blocks: Tensor, pages: Tensor) -> None:
        """Put pages from `copy_out` (of any storage with these layers, block size, dtype) into `blocks`."""
        start = 0
        for part in self.parts():
            size = part[0].numel() * part.element_size()
            page = pages[:, start : start + size].contiguous().view(part.dtype)
            part[blocks] = page.reshape(len(blocks), *part.shape[1:])
            start += size
        assert start == pages.shape[1], f"pages of {pages.shape[1]} bytes, blocks of {start}"

    def parts(self) -> list[Tensor]:
        """All tensors, each once, in the order in which a page holds them."""
        of_layers = (self.keys, self.values, self.key_scales, self.value_scales)
        stored = [number for number, layer in enumerate(self.layers) if layer.source is None]
        return [part for parts in of_layers for number in stored if (part := parts[number]) is not None]

    def _of_layers(self, make: Callable[[LayerSpec], Part]) -> list[Part]:
        parts: list[Part] = []
        for layer in self.layers:
            parts.append(make(layer) if layer.source is None else parts[layer.source])
        return parts

    def _zeros(self, layer: LayerSpec, dim: int) -> Tensor:
        shape = (self.blocks, layer.kv_heads, self.block_size, dim)
        return torch.zeros(shape, dtype=layer.kv_format.code_dtype(self.dtype), device=self.device)

    def _scales(self, layer: LayerSpec, count: int) -> Tensor | None:
        if layer.kv_format is KVFormat.AS_COMPUTED:
            return None
        shape = (self.blocks, layer.kv_heads, self.block_size, count)
        return torch.zeros(shape, dtype=torch.bfloat16, device=self.device)
