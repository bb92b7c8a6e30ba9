"""Blocks as bytes: their price, pages that travel, and pages in host memory, in the order of the plan."""

from __future__ import annotations

import pytest
import torch
from support.engine.host_swaps import copies

from millstream_worker.engine.protocol.config import EngineConfig
from millstream_worker.engine.runner.kv.host_swap import (
    HostSwap,
    copied_blocks,
    copy_bytes,
    host_pages,
    open_swap,
)
from millstream_worker.engine.runner.kv.layer_spec import LayerSpec
from millstream_worker.engine.runner.kv.pool_size import GIB
from millstream_worker.engine.runner.kv.storage import KVStorage, bytes_per_block

CPU = torch.device("cpu")
LAYERS = (LayerSpec(4, 2, 8, 8, 1.0), LayerSpec(4, 1, 16, 12, 1.0), LayerSpec(4, 2, 8, 8, 1.0, window=5))


def test_bytes_per_block() -> None:
    assert bytes_per_block(LAYERS[:1], 16, torch.float32) == 2 * 1 * 2 * 8 * 16 * 4
    assert bytes_per_block(LAYERS, 16, torch.bfloat16) == (2 * 16 + 28 + 2 * 16) * 16 * 2
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


def storage_of(dtype: torch.dtype = torch.float32) -> KVStorage:
    storage = KVStorage(LAYERS, 8, 4, dtype, CPU)
    for part in [*storage.keys, *storage.values]:
        part.normal_()
    return storage


def block(storage: KVStorage, number: int) -> list[torch.Tensor]:
    return [part[number].clone() for part in [*storage.keys, *storage.values]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_blocks_come_back_elsewhere_as_they_were(dtype: torch.dtype) -> None:
    storage = storage_of(dtype)
    swap = HostSwap(storage, 3)
    before = {number: block(storage, number) for number in range(8)}
    swap.apply(copies([(5, 2), (1, 0)], []))
    for part in [*storage.keys, *storage.values]:
        part[1:6] = 0
    swap.apply(copies([], [(0, 7), (2, 3)]))
    for place, origin in ((7, 1), (3, 5), (0, 0), (6, 6)):
        for now, then in zip(block(storage, place), before[origin], strict=True):
            assert torch.equal(now, then)
    assert not storage.keys[0][1].any()


def test_what_goes_out_in_a_plan_goes_before_what_comes_in() -> None:
    storage = storage_of()
    swap = HostSwap(storage, 2)
    first, second = block(storage, 1), block(storage, 2)
    swap.apply(copies([(1, 0)], []))
    swap.apply(copies([(2, 1)], [(0, 2), (1, 4)]))  # into the block that has just gone out; and this one back
    for now, then in zip(block(storage, 2) + block(storage, 4), first + second, strict=True):
        assert torch.equal(now, then)


def test_measuring_leaves_an_empty_storage_empty() -> None:
    storage = KVStorage(LAYERS, 8, 4, torch.float32, CPU)
    swap = HostSwap(storage, 20)
    assert swap.block_seconds() > 0
    assert not any(part.any() for part in [*storage.keys, *storage.values])
    assert swap.pages == 20


@pytest.mark.parametrize(
    ("setting", "device", "free", "pages"),
    [
        ("auto", "cpu", 8 * GIB, 0),
        ("auto", "cuda", 8 * GIB, 2 * GIB // 1000),  # a quarter of what is free
        ("auto", "cuda", 900 * GIB, 8 * GIB // 1000),  # on large machines it is modest
        ("0", "cuda", 8 * GIB, 0),
        ("1GiB", "cpu", 8 * GIB, GIB // 1000),
        ("3000", "cuda", 8 * GIB, 3),
    ],
)
def test_how_many_pages(setting: str, device: str, free: int, pages: int) -> None:
    assert host_pages(setting, 1000, torch.device(device), free=free) == pages


def test_pinned_memory_comes_in_powers_of_two() -> None:
    assert host_pages("4GiB", 2**30, torch.device("cuda"), free=6 * 2**30) == 4
    with pytest.raises(ValueError, match=r"host_swap '5GiB': only 6,442,450,944 .* takes 8,589,934,592"):
        host_pages("5GiB", 2**30, torch.device("cuda"), free=6 * 2**30)


@pytest.mark.parametrize(("setting", "problem"), [("much", "a size"), ("9GiB", "host memory are free")])
def test_what_cannot_be_is_said(setting: str, problem: str) -> None:
    with pytest.raises(ValueError, match=rf"host_swap '{setting}': .*{problem}"):
        host_pages(setting, 1000, CPU, free=8 * GIB)


def test_a_pool_is_told_what_the_copies_hold() -> None:
    config = EngineConfig("m", host_swap="1MiB", max_step_tokens=64, max_rows=8)
    assert copied_blocks(config) == 4 + 8
    assert copy_bytes(config, 1048, 1000) == 2 * 12 * 1000
    assert copy_bytes(config, 2, 2**19) == 2 * 2 * 2**19
    assert copy_bytes(config, 0, 1000) == 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="its memory can be pinned")
def test_memory_that_cannot_be_pinned_is_done_without_or_refused() -> None:
    """As here, where no device could read it."""
    said: list[str] = []
    storage = storage_of()
    storage.device = torch.device("cuda")
    assert open_swap(EngineConfig("m", host_swap="Auto"), 2, storage, said.append) is None
    assert [line.partition(":")[0] for line in said] == ["no host memory for KV blocks"]
    with pytest.raises(ValueError, match=r"host_swap '1MiB': .*; give less, or 0 for none"):
        open_swap(EngineConfig("m", host_swap="1MiB"), 2, storage, said.append)
