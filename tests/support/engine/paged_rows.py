"""Rows that grow by given amounts over a storage full of what is no number, with an attention backend of the
CPU, beside what attention comes to by its definition."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from millstream_worker.engine.runner.attention.interface import AttentionBackend
from millstream_worker.engine.runner.kv.kv_format import (
    KEY_SCALES,
    VALUE_SCALES,
    KVFormat,
    dequantize,
    quantize,
)
from millstream_worker.engine.runner.kv.layer_spec import LayerSpec
from millstream_worker.engine.runner.kv.storage import KVStorage
from support.engine.planning import Segment, pack, sharing

CPU = torch.device("cpu")
TOLERANCE = {torch.float32: 3e-6, torch.bfloat16: 3e-2, torch.float16: 4e-3}
LAYERS = {
    "plain": LayerSpec(4, 4, 16, 16, scale=0.3),
    "grouped": LayerSpec(6, 2, 16, 16, scale=0.25),
    "one key head": LayerSpec(5, 1, 12, 12, scale=0.2),
    "window": LayerSpec(4, 2, 8, 8, scale=0.3, window=7),
    "window of one": LayerSpec(4, 2, 8, 8, scale=0.3, window=1),
    "softcap": LayerSpec(4, 2, 8, 8, scale=1.0, softcap=2.0),
    "sinks": LayerSpec(4, 2, 8, 8, scale=0.5, window=9, sinks=True),
    "wide values": LayerSpec(4, 4, 8, 24, scale=0.3),
    "narrow values": LayerSpec(4, 2, 24, 8, scale=0.2, window=20, softcap=3.0, sinks=True),
    "odd heads": LayerSpec(3, 1, 15, 33, scale=0.2),
    "wide heads": LayerSpec(2, 1, 256, 256, scale=0.06),
    "80": LayerSpec(2, 2, 80, 80, scale=0.1),
}
LAYERS |= {
    f"{name} int8": replace(LAYERS[name], kv_format=KVFormat.INT8)
    for name in (
        "plain",
        "grouped",
        "one key head",
        "softcap",
        "wide values",
        "odd heads",
        "wide heads",
        "80",
    )
}
# New tokens of five rows, step by step.
RAGGED = ([3, 0, 17, 1, 40], [1, 5, 1, 1, 1], [1, 1, 1, 0, 1], [2, 1, 130, 1, 1], [1, 1, 1, 1, 1])


class PagedRows:
    """All queries, keys and values of `count` rows so far, in one layer."""

    def __init__(
        self,
        layer: LayerSpec,
        count: int,
        build: Callable[[KVStorage], AttentionBackend],
        *,
        block_size: int = 16,
        dtype: torch.dtype = torch.float32,
        tokens: int = 1600,
    ) -> None:
        self.layer, self.block_size, self.dtype = layer, block_size, dtype
        self._torch = torch.Generator().manual_seed(count)
        self.storage = KVStorage([layer], tokens // block_size, block_size, dtype, CPU)
        for part in self.storage.parts():
            part.fill_(torch.nan if part.is_floating_point() else 99)
        self.free = list(range(tokens // block_size))
        random.Random(0).shuffle(self.free)
        self.blocks: list[list[int]] = [[] for _ in range(count)]
        self.sizes = [
            (layer.heads, layer.key_dim),
            (layer.kv_heads, layer.key_dim),
            (layer.kv_heads, layer.value_dim),
        ]
        self.qkv = [[torch.empty(0, *size, dtype=dtype) for size in self.sizes] for _ in range(count)]
        self.sinks = torch.randn(layer.heads, generator=self._torch) if layer.sinks else None
        self.attention = build(self.storage)

    def begin_like(self, row: int, other: int, blocks: int) -> None:
        """Let a row without tokens begin with another's first blocks."""
        assert not self.blocks[row], "it has tokens"
        self.blocks[row] = self.blocks[other][:blocks]
        self.qkv[row] = [part[: blocks * self.block_size] for part in self.qkv[other]]

    def step(
        self, new: Sequence[int], prefix_groups: Sequence[tuple[int, Sequence[int]]] = ()
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Give each row so many tokens: (computed, expected) [T, heads, value_dim] of them. `prefix_groups`:
        blocks that decoding rows share, and which rows."""
        segments, packed, expected = [], [], []
        for row in sorted((row for row, tokens in enumerate(new) if tokens), key=lambda row: new[row] > 1):
            start, count = len(self.qkv[row][0]), new[row]
            while len(self.blocks[row]) * self.block_size < start + count:
                self.blocks[row].append(self.free.pop())
            segments.append(Segment(row, [0] * count, start, self.blocks[row]))
            fresh = [torch.randn(count, *size, generator=self._torch).to(self.dtype) for size in self.sizes]
            self.qkv[row] = [torch.cat(pair) for pair in zip(self.qkv[row], fresh, strict=True)]
            packed.append(fresh)
            query, *others = self.qkv[row]
            expected.append(definition(self.layer, query[start:], *stored(self.layer, *others), self.sinks))
        members = [[segments.index(s) for s in segments if s.slot in rows] for _, rows in prefix_groups]
        tokens = [blocks * self.block_size for blocks, _ in prefix_groups]
        self.attention.begin(
            sharing(pack(segments, self.block_size), list(zip(tokens, members, strict=True)))
        )
        # As modules hand them over: heads before tokens in memory.
        query, key, value = (
            torch.cat(part).transpose(0, 1).contiguous().transpose(0, 1) for part in zip(*packed, strict=True)
        )
        return self.attention.attend(0, query, key, value, self.sinks), torch.cat(expected)

    def check(self, *steps: Sequence[int]) -> None:
        """Take these steps, each of which must come to the definition."""
        for new in steps:
            self.check_step(new)

    def check_step(self, new: Sequence[int], prefix_groups: Sequence[tuple[int, Sequence[int]]] = ()) -> None:
        computed, expected = self.step(new, prefix_groups)
        assert computed.dtype == self.dtype
        assert computed.is_contiguous()
        # Of the size of the cap's scores; what is read together is put together once more.
        tolerance = TOLERANCE[self.dtype] * (1 + (self.layer.softcap or 0) / 8) * (1 + bool(prefix_groups))
        torch.testing.assert_close(computed.double(), expected, atol=tolerance, rtol=tolerance)


def stored(layer: LayerSpec, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What the layer's format keeps of them."""
    if layer.kv_format is KVFormat.AS_COMPUTED:
        return key, value
    codes = quantize(key, KEY_SCALES), quantize(value, VALUE_SCALES)
    return dequantize(*codes[0], torch.float32), dequantize(*codes[1], torch.float32)


def definition(
    layer: LayerSpec, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, sinks: torch.Tensor | None
) -> torch.Tensor:
    """Attention of one row's last tokens [q, heads, dim] to all of its [n, kv_heads, dim], in float64."""
    length, group = len(key), layer.heads // layer.kv_heads
    key, value = (t.double().repeat_interleave(group, dim=1) for t in (key, value))
    scores = torch.einsum("qhd,khd->hqk", query.double(), key) * layer.scale
    if layer.softcap is not None:
        scores = torch.tanh(scores / layer.softcap) * layer.softcap
    places = torch.arange(length, device=query.device)
    distance = places[length - len(query) :, None] - places
    hidden = distance < 0 if layer.window is None else (distance < 0) | (distance >= layer.window)
    scores = scores.masked_fill(hidden, -torch.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks.double()[:, None, None].expand(-1, len(query), 1)], dim=-1)
    weights = scores.softmax(-1)[..., :length]
    return torch.einsum("hqk,khd->qhd", weights, value)
