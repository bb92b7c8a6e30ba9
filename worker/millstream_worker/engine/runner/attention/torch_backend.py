"""Computes attention in plain PyTorch: keys and values are gathered by block table, then multiplied. It runs
on every device and computes every kind of layer: the reference of the other backends, and used where they
cannot run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from millstream_worker.engine.brain.batch.plan import Int64, Plan
from millstream_worker.engine.runner.device.transfer import to_device
from millstream_worker.engine.runner.kv.kv_format import dequantize, quantize
from millstream_worker.engine.runner.kv.layer_spec import LayerSpec
from millstream_worker.engine.runner.kv.storage import KVStorage

_SCORE_BYTES = 16 << 20  # of a slice in float32
_LEAST_QUERIES, _MOST_QUERIES = 16, 128  # of a slice: more multiply too many keys that few of them see
_KEY_BYTES = 4 << 20  # of a slice of several rows: more would leave the processor's cache unused
_PADDING = 2  # times the shortest row's keys that a row in the same slice may have


@dataclass(frozen=True, slots=True, eq=False)
class Slice:
    """R rows with q new tokens each, and the keys from each row's first visible block on."""

    tokens: Tensor  # [R, q] packed positions
    pages: Tensor  # [R, kv_heads, W] (block, head) pages of the storage; a row with fewer repeats its last
    queries: Tensor  # [R, q] positions in the row
    keys: Tensor  # [R, K] the same; K = W * block_size


@dataclass(frozen=True, slots=True, eq=False)
class _Cache:
    """A layer's keys or values in the storage."""

    codes: Tensor  # [blocks, kv_heads, block_size, dim]; without scales the numbers themselves
    scales: Tensor | None  # [blocks, kv_heads, block_size, 2 or 1]
    dtype: torch.dtype  # of the numbers

    def clear(self, blocks: Tensor) -> None:
        """Sets `blocks` to zeros."""
        (self.codes if self.scales is None else self.scales)[blocks] = 0

    def put(self, new: Tensor, blocks: Tensor, offsets: Tensor) -> None:
        """Store [T, kv_heads, dim]; tokens without a place are left out."""
        new = new[: len(blocks)].to(self.dtype)
        if self.scales is not None:
            new, self.scales[blocks, :, offsets] = quantize(new, self.scales.shape[-1])
        self.codes[blocks, :, offsets] = new

    def gathered(self, part: Slice) -> Tensor:
        """Returns a slice's keys or values, [R, kv_heads, K, dim]."""
        codes = _gathered(self.codes, part)
        return codes if self.scales is None else dequantize(codes, _gathered(self.scales, part), self.dtype)


class TorchAttention:
    """`AttentionBackend` over one storage. Prefixes that rows share are read by each of them."""

    def __init__(self, storage: KVStorage) -> None:
        self._storage = storage
        self._shapes = [layer.shape for layer in storage.layers]
        self._slots: list[tuple[Tensor, ...]] = []  # by group: each token's block and offset; begun blocks
        self._slices: dict[LayerSpec, list[Slice]] = {}

    def begin(self, plan: Plan) -> None:
        device, size = self._storage.device, self._storage.block_size
        self._slots = []
        for slots in plan.slot_mapping:
            blocks, offsets = np.divmod(slots, size)
            self._slots.append(tuple(to_device(i, device) for i in (blocks, offsets, blocks[offsets == 0])))
        itemsize = self._storage.dtype.itemsize
        self._slices = {
            shape: [self._slice(plan, shape, *rows) for rows in sliced(plan, shape, itemsize)]
            for shape in dict.fromkeys(self._shapes)
        }

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None = None
    ) -> Tensor:
        spec = self._storage.layers[layer]
        storage, begun = self._storage, self._slots[spec.group][2]
        keys = _Cache(storage.keys[layer], storage.key_scales[layer], storage.dtype)
        values = _Cache(storage.values[layer], storage.value_scales[layer], storage.dtype)
        if spec.source is None:
            values.clear(begun)  # may hold what is no number, which a weight of 0 would not undo
            for cache, new in ((keys, key), (values, value)):
                cache.put(new, *self._slots[spec.group][:2])
        out = torch.empty(len(query), spec.heads, spec.value_dim, dtype=storage.dtype, device=storage.device)
        for part in self._slices[self._shapes[layer]]:
            out[part.tokens] = _answers(spec, part, query, keys, values, sinks)
        return out

    def _slice(self, plan: Plan, shape: LayerSpec, rows: Int64, first: int, count: int) -> Slice:
        """Returns the slice of `count` new tokens of each of the segments `rows`, from token `first` on."""
        size, tokens = self._storage.block_size, np.arange(count)
        start = (plan.kv_lens - plan.query_lens)[rows].astype(np.int64) + first  # of the first query
        seen = np.zeros_like(start) if shape.window is None else np.maximum(start - shape.window + 1, 0)
        begin, end = seen // size, (start + count - 1) // size  # first and last block
        blocks = begin[:, None] + np.arange((end - begin).max() + 1)
        table = plan.block_tables[shape.group][rows[:, None], np.minimum(blocks, end[:, None])]
        pages = table[:, None].astype(np.int64) * shape.kv_heads + np.arange(shape.kv_heads)[:, None]
        starts = plan.query_starts[rows].astype(np.int64) + first
        keys = (blocks[:, :, None] * size + np.arange(size)).reshape(len(rows), -1)
        parts = (starts[:, None] + tokens, pages, start[:, None] + tokens, keys)
        return Slice(*(to_device(part, self._storage.device) for part in parts))


def sliced(plan: Plan, shape: LayerSpec, itemsize: int) -> Iterator[tuple[Int64, int, int]]:
    """Yields the slices of a step: segments, first new token and number of new tokens of each. Decoding rows
    of similar length are together; any other segment is alone, and cut. Numbers are of `itemsize` bytes."""
    lens = plan.kv_lens if shape.window is None else np.minimum(plan.kv_lens, shape.window)
    rows = np.argsort(-lens[: plan.decodes], kind="stable")
    while len(rows):
        longest = int(lens[rows[0]])
        key_bytes = longest * shape.kv_heads * max(shape.key_dim, shape.value_dim) * itemsize
        alike = rows[: max(1, _KEY_BYTES // key_bytes)]
        alike = alike[lens[alike] * _PADDING >= longest]
        yield alike, 0, 1
        rows = rows[len(alike) :]
    for segment in range(plan.decodes, len(plan.query_lens)):
        count, row_bytes = int(plan.query_lens[segment]), 4 * shape.heads * int(plan.kv_lens[segment])
        most = min(max(_SCORE_BYTES // row_bytes, _LEAST_QUERIES), _MOST_QUERIES)
        for first in range(0, count, most):
            yield np.array([segment]), first, min(most, count - first)


def _answers(
    spec: LayerSpec, part: Slice, query: Tensor, keys: _Cache, values: _Cache, sinks: Tensor | None
) -> Tensor:
    """Returns [R, q, heads, value_dim]. The query heads of a KV head are rows of one matrix; products are of
    the storage's dtype, the softmax in float32."""
    rows, count = part.tokens.shape
    asked = (query[part.tokens] * spec.scale).to(keys.dtype)
    asked = asked.view(rows, count, spec.kv_heads, -1, spec.key_dim).permute(0, 2, 3, 1, 4).flatten(2, 3)
    products = asked @ keys.gathered(part).transpose(2, 3)  # [R, kv_heads, group * q, K]
    scores = products.float().view(rows, spec.heads, count, -1)
    if spec.softcap is not None:
        scores = torch.tanh(scores / spec.softcap) * spec.softcap
    place, own = part.keys[:, None], part.queries[:, :, None]
    hidden = place > own  # [R, q, K]
    if spec.window is not None:
        hidden |= place <= own - spec.window
    scores.masked_fill_(hidden[:, None], -torch.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks.float().view(-1, 1, 1).expand(rows, -1, count, 1)], -1)
    weights = scores.softmax(-1)[..., : part.keys.shape[1]]
    answers = weights.to(values.dtype).reshape(products.shape) @ values.gathered(part)
    return answers.view(rows, spec.heads, count, -1).transpose(1, 2)


def _gathered(cache: Tensor, part: Slice) -> Tensor:
    pages = cache.flatten(0, 1).index_select(0, part.pages.flatten())  # [R * kv_heads * W, block_size, dim]
    return pages.view(*part.pages.shape[:2], -1, cache.shape[3])
