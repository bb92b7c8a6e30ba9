"""Rows that grow by given amounts over a storage full of what is no number, with an attention backend of the
CPU, beside what attention comes to by its definition."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch

from millstream_worker.engine.runner.attention.interface import AttentionBackend
from millstream_worker.engine.runner.kv.layer_spec import LayerSpec
from millstream_worker.engine.runner.kv.storage import KVStorage
from support.planning import Segment, pack

CPU = torch.device("cpu")


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
        for part in (*self.storage.keys, *self.storage.values):
            part.fill_(torch.nan)
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
            expected.append(definition(self.layer, *self.qkv[row], self.sinks)[start:])
        plan = pack(segments, self.block_size)
        members = [[segments.index(s) for s in segments if s.slot in rows] for _, rows in prefix_groups]
        self.attention.begin(
            replace(
                plan,
                prefix_group_lens=np.array(
                    [blocks * self.block_size for blocks, _ in prefix_groups], np.int32
                ),
                prefix_group_starts=np.cumsum([0, *map(len, members)]).astype(np.int32),
                prefix_group_segments=np.array([place for places in members for place in places], np.int32),
            )
        )
        # As modules hand them over: heads before tokens in memory.
        query, key, value = (
            torch.cat(part).transpose(0, 1).contiguous().transpose(0, 1) for part in zip(*packed, strict=True)
        )
        return self.attention.attend(0, query, key, value, self.sinks), torch.cat(expected)


def definition(
    layer: LayerSpec, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, sinks: torch.Tensor | None
) -> torch.Tensor:
    """Attention of one row's tokens [n, heads, dim] to themselves, in float64."""
    length, group = len(query), layer.heads // layer.kv_heads
    key, value = (t.double().repeat_interleave(group, dim=1) for t in (key, value))
    scores = torch.einsum("qhd,khd->hqk", query.double(), key) * layer.scale
    if layer.softcap is not None:
        scores = torch.tanh(scores / layer.softcap) * layer.softcap
    distance = torch.arange(length)[:, None] - torch.arange(length)
    hidden = distance < 0 if layer.window is None else (distance < 0) | (distance >= layer.window)
    scores = scores.masked_fill(hidden, -torch.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks.double()[:, None, None].expand(-1, length, 1)], dim=-1)
    weights = scores.softmax(-1)[..., :length]
    return torch.einsum("hqk,khd->qhd", weights, value)
