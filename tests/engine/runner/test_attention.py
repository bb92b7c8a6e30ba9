"""The plain PyTorch attention against its definition, written out row by row in float64."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from support.paged_rows import definition
from support.planning import Segment, pack

from millstream_worker.engine.brain.plan import Plan
from millstream_worker.engine.runner.attention import tiles
from millstream_worker.engine.runner.attention.interface import LayerSpec
from millstream_worker.engine.runner.attention.matmul import MatmulAttention
from millstream_worker.engine.runner.storage import KVStorage

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
        self.attention = MatmulAttention(self.storage)

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
def test_prompts_longer_than_a_tile(new: list[int]) -> None:
    for name in ("grouped", "window", "sinks"):
        rows = Rows(LAYERS[name], 2, 16, torch.float32)
        rows.step([10, 5])
        torch.testing.assert_close(*rows.step(new), atol=2e-6, rtol=1e-5)


def test_buckets_of_any_size_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = ([3, 9, 17, 1, 40], [1, 5, 1, 1, 1], [1, 1, 1, 1, 1])
    whole, alone = (Rows(LAYERS["grouped"], 5, 4, torch.float32) for _ in range(2))
    want = [whole.step(new)[0] for new in steps]
    monkeypatch.setattr(tiles, "MAX_GATHER_BYTES", 1)
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
    """The rest of a block, and blocks that only pad a bucket, may hold what is no number."""
    layer = LAYERS["grouped"]
    rows = Rows(layer, 2, 16, torch.float32)
    rows.blocks[0] = [7]
    broken = torch.full((32, layer.kv_heads, layer.key_dim), bad)
    rows.attention.begin(pack([Segment(1, [0] * 32, 0, [7, 0])], 16))
    rows.attention.attend(0, torch.ones(32, layer.heads, layer.key_dim), broken, broken)
    rows.free.remove(0)  # stays broken

    for new in ([3, 40], [1, 1]):
        torch.testing.assert_close(*rows.step(new), atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("name", ["grouped", "window"])
def test_a_long_context_costs_no_mask_for_what_all_queries_see(name: str) -> None:
    """2,048 new tokens of a row that has 30,000: a mask of each by each would take 262 MB in every kind of
    layer, for a whole step."""
    storage = KVStorage([LAYERS[name]], 2010, 16, torch.float32, CPU)
    attention = MatmulAttention(storage)
    attention.begin(pack([Segment(0, [0] * 2048, 30_000, range(2003))], 16))
    (step,) = attention._steps.values()
    assert sum(bucket.bias.nbytes for bucket in step.buckets) < 2 * 2**20


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
def test_tiles_cover_the_step_within_bounds(window: int | None) -> None:
    for seed in range(20):
        covers_the_step_within_bounds(seed, window)


def covers_the_step_within_bounds(seed: int, window: int | None) -> None:
    layer = LayerSpec(8, 2, 64, 64, scale=1.0, window=window)
    plan = random_plan(seed, rows=1 + seed * 3, block_size=16)
    whole = tiles.cut(plan, layer, 16)
    buckets = list(tiles.group(whole, layer, 16, itemsize=2))

    asked = np.concatenate([
        start + np.arange(count) for b in buckets for start, count in zip(b.starts, b.queries, strict=True)
    ])  # fmt: skip
    assert sorted(asked) == list(range(plan.token_count)), "each query once"
    for bucket in buckets:
        first_key = bucket.first_blocks * 16
        position = first_key + bucket.offsets
        assert (position == plan.positions[bucket.starts]).all()
        lowest_seen = 0 if window is None else np.maximum(position - window + 1, 0)
        assert (first_key <= lowest_seen).all(), "the window begins within the first block"
        assert (lowest_seen - first_key < 16).all() or window is None
        end = position + bucket.queries
        assert ((first_key + bucket.blocks * 16 >= end) & (first_key + (bucket.blocks - 1) * 16 < end)).all()
        if len(bucket) > 1:
            padded = len(bucket) * bucket.blocks.max() * 16
            assert padded * 2 * 64 * 2 <= tiles.MAX_GATHER_BYTES
            assert padded * bucket.queries.max() * 8 * 4 <= tiles.MAX_SCORE_BYTES


def test_equal_rows_share_a_bucket_and_ragged_ones_take_few() -> None:
    layer = LayerSpec(9, 3, 64, 64, scale=1.0)

    def buckets(lengths: Sequence[int]) -> int:
        segments = [
            Segment(slot, [0], length, range(length // 16 + 1)) for slot, length in enumerate(lengths)
        ]
        return len(list(tiles.group(tiles.cut(pack(segments, 16), layer, 16), layer, 16, itemsize=2)))

    assert buckets([150] * 32) == 1
    assert buckets(range(64, 320, 8)) <= 4
