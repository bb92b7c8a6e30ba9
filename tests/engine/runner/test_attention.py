"""The plain PyTorch attention against its definition, written out row by row in float64."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from support.engine.paged_rows import LAYERS, RAGGED, PagedRows
from support.engine.planning import Segment, pack, random_plan

from millstream_worker.engine.runner.attention import torch_backend
from millstream_worker.engine.runner.attention.torch_backend import TorchAttention, sliced
from millstream_worker.engine.runner.kv.layer_spec import LayerSpec


@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("name", LAYERS)
def test_ragged_steps(name: str, block_size: int) -> None:
    PagedRows(LAYERS[name], 5, TorchAttention, block_size=block_size).check(*RAGGED)


@pytest.mark.parametrize("new", [[127, 128], [129, 1], [300, 256], [1, 257]])
def test_prompts_longer_than_a_slice(new: list[int]) -> None:
    for name in ("grouped", "window", "sinks"):
        PagedRows(LAYERS[name], 2, TorchAttention).check([10, 5], new)


@pytest.mark.parametrize("name", ["grouped", "softcap", "sinks", "wide values", "grouped int8"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(name: str, dtype: torch.dtype) -> None:
    PagedRows(LAYERS[name], 3, TorchAttention, dtype=dtype).check([30, 5, 0], [1, 1, 20], [1, 1, 1])


@pytest.mark.parametrize("window", [None, 100])
def test_slices_cover_the_step_within_bounds(window: int | None) -> None:
    layer = LayerSpec(8, 2, 64, 64, scale=1.0, window=window)
    for seed in range(20):
        plan = random_plan(seed, rows=1 + seed * 3, longest=700)
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
