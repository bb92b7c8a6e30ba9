"""The plain PyTorch attention against its definition, written out row by row in float64."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from support.paged_rows import definition
from support.planning import Segment, pack

from millstream_worker.engine.brain.batch.plan import Plan
from millstream_worker.engine.runner.attention import torch_backend
from millstream_worker.engine.runner.attention.torch_backend import TorchAttention, sliced
from millstream_worker.engine.runner.kv.layer_spec import LayerSpec
from millstream_worker.engine.runner.kv.storage import KVStorage

CPU = torch.device("cpu")
LAYERS = {
    "plain": LayerSpec(4, 4, 8, 8, scale=0.3),
    "grouped": LayerSpec(6, 2, 16, 16, scale=0.25),
    "one key head": LayerSpec(5, 1, 12, 12, scale=0.2),
    "window": LayerSpec(4, 2, 8, 8, scale=0.3, window=7),
    "window of one": LayerSpec(4, 2, 8, 8, scale=0.3, window=1),
    "softcap": LayerSpec(4, 2, 8, 8, scale=1.0, softcap=2.0),
    "sinks": LayerSpec(4, 2, 8, 8, scale=0.5, window=9, sinks=True),
    "wide values": LayerSpec(4, 4, 8, 24, scale=0.3),
    "narrow values": LayerSpec(4, 2, 24, 8, scale=0.2, window=20, softcap=3.0, sinks=True),
}


class Rows:
    """Rows that grow by given amounts; all their queries, keys and values so far."""

    def __init__(
        self, layer: LayerSpec, count: int, block_size: int, dtype: torch.dtype, seed: int = 0
    ) -> None:
        self.layer, self.block_size, self.dtype = layer, block_size, dtype
        self._torch, self.free = torch.Generator().manual_seed(seed), list(range(900 // block_size))
        random.Random(seed).shuffle(self.free)
        self.blocks: list[list[int]] = [[] for _ in range(count)]
        dims = (
            (layer.heads, layer.key_dim),
            (layer.kv_heads, layer.key_dim),
            (layer.kv_heads, layer.value_dim),
        )
        self.qkv = [[torch.empty(0, *dim, dtype=dtype) for dim in dims] for _ in range(count)]
        self.sinks = torch.randn(layer.heads, generator=self._torch) if layer.sinks else None
        self.storage = KVStorage([layer], 900 // block_size, block_size, dtype, CPU)
        self.attention = TorchAttention(self.storage)

    def step(self, new: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Give each row so many tokens: (computed, expected) [T, heads, value_dim] of them."""
        segments, packed, expected = [], [], []
        order = sorted((row for row, tokens in enumerate(new) if tokens), key=lambda row: new[row] > 1)
        for row in order:
            start, count = len(self.qkv[row][0]), new[row]
            while len(self.blocks[row]) * self.block_size < start + count:
                self.blocks[row].append(self.free.pop())
            segments.append(Segment(row, [0] * count, start, self.blocks[row]))
            fresh = [
                torch.randn(count, *t.shape[1:], generator=self._torch).to(self.dtype) for t in self.qkv[row]
            ]
            self.qkv[row] = [torch.cat(pair) for pair in zip(self.qkv[row], fresh, strict=True)]
            packed.append(fresh)
            expected.append(definition(self.layer, *self.qkv[row], self.sinks)[start:])
        self.attention.begin(pack(segments, self.block_size))
        query, key, value = (torch.cat(part) for part in zip(*packed, strict=True))
        return self.attention.attend(0, query, key, value, self.sinks).double(), torch.cat(expected)


@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("name", LAYERS)
def test_ragged_steps(name: str, block_size: int) -> None:
    rows = Rows(LAYERS[name], 5, block_size, torch.float32)
    for new in ([3, 0, 17, 1, 40], [1, 5, 1, 1, 1], [1, 1, 1, 0, 1], [2, 1, 30, 1, 1], [1, 1, 1, 1, 1]):
        torch.testing.assert_close(*rows.step(new), atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("new", [[127, 128], [129, 1], [300, 256], [1, 257]])
def test_prompts_longer_than_a_slice(new: list[int]) -> None:
    for name in ("grouped", "window", "sinks"):
        rows = Rows(LAYERS[name], 2, 16, torch.float32)
        rows.step([10, 5])
        torch.testing.assert_close(*rows.step(new), atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("limit", ["_KEY_BYTES", "_SCORE_BYTES", "_LEAST_QUERIES"])
def test_slices_of_any_size_give_the_same(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = ([3, 9, 17, 1, 40], [1, 5, 1, 1, 1], [1, 1, 1, 1, 1])
    whole, alone = (Rows(LAYERS["grouped"], 5, 4, torch.float32) for _ in range(2))
    want = [whole.step(new)[0] for new in steps]
    monkeypatch.setattr(torch_backend, limit, 1)
    for new, expected in zip(steps, want, strict=True):
        torch.testing.assert_close(alone.step(new)[0], expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", ["grouped", "softcap", "sinks", "wide values"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 3e-2), (torch.float16, 4e-3)])
def test_half_precision(name: str, dtype: torch.dtype, tolerance: float) -> None:
    rows = Rows(LAYERS[name], 3, 16, dtype)
    for new in ([30, 5, 0], [1, 1, 20], [1, 1, 1]):
        computed, expected = rows.step(new)
        torch.testing.assert_close(computed, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_broken_row_leaves_the_next_user_of_its_block_alone(bad: float) -> None:
    """The rest of a block, and blocks that only pad a slice, may hold what is no number."""
    layer = LAYERS["grouped"]
    rows = Rows(layer, 2, 16, torch.float32)
    rows.blocks[0] = [7]
    broken = torch.full((32, layer.kv_heads, layer.key_dim), bad)
    rows.attention.begin(pack([Segment(1, [0] * 32, 0, [7, 0])], 16))
    rows.attention.attend(0, torch.ones(32, layer.heads, layer.key_dim), broken, broken)
    rows.free.remove(0)  # stays broken

    for new in ([3, 40], [1, 1]):
        torch.testing.assert_close(*rows.step(new), atol=2e-6, rtol=1e-5)


def test_queries_of_any_strides() -> None:
    """Modules hand over transposed views."""
    rows = Rows(LAYERS["grouped"], 1, 4, torch.float32)
    rows.step([6])
    query, key, value = (t.transpose(0, 1).contiguous().transpose(0, 1) for t in rows.qkv[0])
    rows.attention.begin(pack([Segment(0, [0] * 6, 0, rows.blocks[0])], 4))
    out = rows.attention.attend(0, query, key, value)
    assert out.is_contiguous()
    torch.testing.assert_close(out.double(), definition(rows.layer, *rows.qkv[0], None), atol=2e-6, rtol=1e-5)


def random_plan(seed: int, rows: int, block_size: int) -> Plan:
    chance = random.Random(seed)
    segments = []
    for slot in range(rows):
        start = chance.choice([0, 0, chance.randrange(2000)])
        count = chance.choice([1, 1, chance.randrange(1, 40), chance.randrange(1, 700)])
        segments.append(Segment(slot, [0] * count, start, range(-(-(start + count) // block_size))))
    return pack(segments, block_size)


@pytest.mark.parametrize("window", [None, 100])
def test_slices_cover_the_step_within_bounds(window: int | None) -> None:
    layer = LayerSpec(8, 2, 64, 64, scale=1.0, window=window)
    for seed in range(20):
        plan = random_plan(seed, rows=1 + seed * 3, block_size=16)
        asked: list[int] = []
        for rows, first, count in sliced(plan, layer, itemsize=2):
            starts = plan.query_starts[rows] + first
            asked += (starts[:, None] + np.arange(count)).flatten().tolist()
            lens = np.minimum(plan.kv_lens[rows], window or 10**6)
            assert len(rows) == 1 or count == 1
            assert len(rows) == 1 or len(rows) * lens.max() * 2 * 64 * 2 <= torch_backend._KEY_BYTES
            assert lens.max() <= 2 * lens.min()
            assert count <= 16 or count * 8 * 4 * plan.kv_lens[rows].max() <= torch_backend._SCORE_BYTES
        assert sorted(asked) == list(range(plan.token_count)), "each query once"


def test_equal_rows_share_a_slice_and_ragged_ones_take_few() -> None:
    layer = LayerSpec(9, 3, 64, 64, scale=1.0)

    def slices(lengths: Sequence[int]) -> int:
        segments = [
            Segment(slot, [0], length, range(length // 16 + 1)) for slot, length in enumerate(lengths)
        ]
        return len(list(sliced(pack(segments, 16), layer, itemsize=2)))

    assert slices([150] * 32) == 1
    assert slices(range(64, 320, 8)) <= 4
