"""One layer's attention in one step over a storage with the rows' earlier keys, and what it must come to by
the definition, in float64."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from millstream_worker.engine.runner.attention.interface import AttentionBackend
from millstream_worker.engine.runner.gpu.attention.triton_backend import TritonAttention
from millstream_worker.engine.runner.kv.kv_format import KEY_SCALES, VALUE_SCALES, KVFormat, quantize
from millstream_worker.engine.runner.kv.layer_spec import LayerSpec
from millstream_worker.engine.runner.kv.storage import KVStorage
from support.engine.paged_rows import definition, stored
from support.engine.planning import Segment, pack, sharing

ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")
DTYPES = {torch.float32: 2e-6, torch.float16: 2e-3} | ({torch.bfloat16: 1.6e-2} if ON_GPU else {})

Lens = Sequence[tuple[int, int]]  # per row: keys cached before the step, new tokens
PrefixGroupRows = Sequence[tuple[int, Sequence[int]]]  # blocks shared, and the decoding rows that share them
RAGGED: Lens = [(0, 1), (37, 1), (6, 1), (0, 23), (18, 5), (30, 2)]


INT8 = {"kv_format": KVFormat.INT8}  # of a spec


def spec(heads: int = 4, kv_heads: int = 2, dim: int = 64, **others: Any) -> LayerSpec:
    return LayerSpec(heads, kv_heads, dim, others.pop("value_dim", dim), dim**-0.5, **others)


class Step:
    """One layer, its storage with the rows' earlier keys and NaN everywhere else, and the step's tensors.
    Rows of one prefix group begin with the same blocks."""

    def __init__(
        self,
        layer: LayerSpec,
        lens: Lens,
        block_size: int = 16,
        dtype: torch.dtype = torch.float32,
        prefix_groups: PrefixGroupRows = (),
    ) -> None:
        self.layer, self.dtype, self.block_size = layer, dtype, block_size
        self.random = torch.Generator().manual_seed(len(lens) + layer.heads)
        ordered = sorted(lens, key=lambda row: row[1] > 1)
        counts = [-(-(cached + new) // block_size) for cached, new in ordered]
        blocks = np.random.default_rng(0).permutation(sum(counts) + 3).tolist()
        self.tables = [[blocks.pop() for _ in range(count)] for count in counts]
        for shared, rows in prefix_groups:
            for row in rows:
                self.tables[row][:shared] = self.tables[rows[0]][:shared]
        segments = [
            Segment(slot, [0] * new, cached, table)
            for slot, ((cached, new), table) in enumerate(zip(ordered, self.tables, strict=True))
        ]
        groups = [(shared * block_size, rows) for shared, rows in prefix_groups]
        self.lens, self.plan = ordered, sharing(pack(segments, block_size), groups)
        self.storage = KVStorage([layer], sum(counts) + 3, block_size, dtype, DEVICE)
        for part in self.storage.parts():
            part.fill_(torch.nan if part.is_floating_point() else 99)
        self.keys = [self.normal(cached + new, layer.kv_heads, layer.key_dim) for cached, new in ordered]
        self.values = [self.normal(cached + new, layer.kv_heads, layer.value_dim) for cached, new in ordered]
        for shared, rows in prefix_groups:
            for row in rows:
                assert ordered[row][0] >= shared * block_size, "a prefix group shares what is computed"
                for own in (self.keys, self.values):
                    own[row][: shared * block_size] = own[rows[0]][: shared * block_size]
        for row, (cached, _) in enumerate(ordered):
            for place in range(cached):
                block, offset = self.tables[row][place // block_size], place % block_size
                self.put(block, offset, self.keys[row][place], self.values[row][place])
        self.query = self.normal(self.plan.token_count, layer.heads, layer.key_dim)
        self.sinks = self.normal(layer.heads) if layer.sinks else None

    def put(self, block: int | Tensor, offset: int | Tensor, key: Tensor, value: Tensor) -> None:
        """Into the storage, as its format has it."""
        storage = self.storage
        if self.layer.kv_format is KVFormat.INT8:
            key, storage.key_scales[0][block, :, offset] = quantize(key, KEY_SCALES)
            value, storage.value_scales[0][block, :, offset] = quantize(value, VALUE_SCALES)
        storage.keys[0][block, :, offset] = key
        storage.values[0][block, :, offset] = value

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.random).to(DEVICE, self.dtype)

    @property
    def new(self) -> tuple[Tensor, Tensor]:
        """The step's own keys and values, packed."""
        pairs = [
            (keys[cached:], values[cached:])
            for (cached, _), keys, values in zip(self.lens, self.keys, self.values, strict=True)
        ]
        keys, values = zip(*pairs, strict=True)
        return torch.cat(keys), torch.cat(values)

    def expected(self) -> Tensor:
        """Row by row, by the definition."""
        queries = [self.query[a:b] for a, b in pairwise(self.plan.query_starts)]
        rows = zip(queries, self.keys, self.values, strict=True)
        return torch.cat(
            [definition(self.layer, query, *stored(self.layer, *own), self.sinks) for query, *own in rows]
        )

    def check(self, backend: AttentionBackend | None = None, error: float | None = None) -> None:
        backend = backend or TritonAttention(self.storage)
        backend.begin(self.plan)
        found = backend.attend(0, self.query, *self.new, self.sinks)
        expected = self.expected()
        assert found.shape == expected.shape
        assert found.is_contiguous()
        worst = (found.double() - expected).abs().max().item()
        assert worst <= (error or DTYPES[self.dtype]) * max(1.0, expected.abs().max().item()), worst
