"""Values that go to the device together, and those that stay in one place there."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from millstream_worker.engine.runner.device.transfer import Arena, Field, packed, to_device, to_host, together

CPU = torch.device("cpu")
ARRAYS = [
    np.arange(5, dtype=np.int32),
    np.zeros((3, 0), np.int64),
    np.array([[True, False]]),
    np.arange(6, dtype=np.float64).reshape(2, 3)[:, ::2],
]


@pytest.mark.parametrize("way", [together, packed])
def test_arrays_arrive_as_they_are(way: Callable[..., list[torch.Tensor]]) -> None:
    for array, tensor in zip(ARRAYS, way(ARRAYS, CPU), strict=True):
        assert tensor.dtype == torch.from_numpy(array).dtype
        assert np.array_equal(tensor.numpy(), array)
        assert np.array_equal(to_host(to_device(array, CPU)).numpy(), array)


def test_packed_arrays_are_apart_from_those_they_were_made_of() -> None:
    array = np.arange(3)
    first, second = packed([array, array], CPU)
    array[0] = 9
    assert first.tolist() == second.tolist() == [0, 1, 2]
    assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
    assert second.data_ptr() % 16 == 0


def test_an_arena_fills_in_place_and_blanks_the_rest() -> None:
    arena = Arena({"slots": Field(3, blank=-1), "lens": Field(5, np.int32), "none": Field(0)}, CPU)
    slots, lens = arena["slots"], arena["lens"]
    assert slots.tolist() == [-1, -1, -1]
    assert lens.dtype == torch.int32

    arena.fill(slots=np.array([4, 5, 6]), lens=np.array([1, 2], np.int32))
    assert slots.tolist() == [4, 5, 6]
    arena.fill(lens=np.array([9]))

    assert slots.tolist() == [-1, -1, -1]
    assert lens.tolist() == [9, 0, 0, 0, 0]
    assert arena["slots"].data_ptr() == slots.data_ptr()
    assert lens.data_ptr() % 16 == 0


def test_an_arena_takes_no_more_than_it_has() -> None:
    arena = Arena({"slots": Field(3)}, CPU)
    with pytest.raises(AssertionError, match="4 slots do not fit into 3"):
        arena.fill(slots=np.arange(4))
    with pytest.raises(KeyError, match="tables"):
        arena.fill(tables=np.arange(2))
