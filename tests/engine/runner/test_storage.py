"""Blocks as bytes: their price, and pages that travel."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from millstream_worker.engine.runner.kv.layer_spec import LayerSpec
from millstream_worker.engine.runner.kv.storage import KVStorage, bytes_per_block
from millstream_worker.engine.runner.model.load import LoadedModel

CPU = torch.device("cpu")
LAYERS = (LayerSpec(4, 2, 8, 8, 1.0), LayerSpec(4, 1, 16, 12, 1.0), LayerSpec(4, 2, 8, 8, 1.0, window=5))


def test_bytes_per_block() -> None:
    assert bytes_per_block(LAYERS[:1], 16, torch.float32) == 2 * 1 * 2 * 8 * 16 * 4
    assert bytes_per_block(LAYERS, 16, torch.bfloat16) == (2 * 16 + 28 + 2 * 16) * 16 * 2


def test_storage_costs_what_was_said() -> None:
    storage = KVStorage(LAYERS, 5, 16, torch.float16, CPU)
    held = sum(part.nbytes for part in [*storage.keys, *storage.values])
    assert held == 5 * storage.bytes_per_block == 5 * bytes_per_block(LAYERS, 16, torch.float16)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_pages_travel_to_another_storage(dtype: torch.dtype) -> None:
    source, target = (KVStorage(LAYERS, blocks, 4, dtype, CPU) for blocks in (6, 9))
    for part in [*source.keys, *source.values]:
        part.normal_()

    pages = source.copy_out(torch.tensor([4, 1, 5]))
    target.copy_in(torch.tensor([0, 8, 3]), pages)

    assert pages.shape == (3, source.bytes_per_block)
    assert pages.dtype == torch.uint8
    for mine, theirs in zip([*source.keys, *source.values], [*target.keys, *target.values], strict=True):
        assert torch.equal(mine[[4, 1, 5]], theirs[[0, 8, 3]])
        assert not theirs[[1, 2, 4, 5, 6, 7]].any()


def test_pages_of_another_storage_are_refused() -> None:
    wide, narrow = (
        KVStorage(LAYERS, 2, 4, torch.float32, CPU),
        KVStorage(LAYERS[:2], 2, 4, torch.float32, CPU),
    )
    with pytest.raises(AssertionError, match="bytes"):
        narrow.copy_in(torch.tensor([0]), wide.copy_out(torch.tensor([0])))


def test_a_model_says_what_its_blocks_cost(load: Callable[[str], LoadedModel]) -> None:
    loaded = load("gemma2")  # 2 layers, 2 KV heads of 16
    assert bytes_per_block(loaded.layer_specs, 16, loaded.dtype) == 2 * 2 * 2 * 16 * 16 * 4
