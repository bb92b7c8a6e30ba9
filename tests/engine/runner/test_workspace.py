"""Where a recorded step keeps what it computes in between."""

from __future__ import annotations

import pytest
import torch

from millstream_worker.engine.runner.replay.workspace import Workspace


def places(workspace: Workspace) -> list[int]:
    """Of tensors as a step of two layers makes and drops them."""
    found = []
    for _ in range(2):
        hidden = workspace.empty((3, 64), torch.float32)
        wide = workspace.empty((3, 200), torch.bfloat16)
        found += [hidden.data_ptr(), wide.data_ptr()]
        view = hidden[1:, ::2]
        del hidden
        found.append(workspace.empty((3, 64), torch.float32).data_ptr())  # not that of the view
        assert view.data_ptr() not in found[-1:]
        del wide, view
    return found


def test_tensors_keep_their_places_and_reuse_freed_ones() -> None:
    workspace = Workspace(2**16)
    first = places(workspace)
    assert len(set(first[:3])) == 3
    assert set(first[3:]) <= set(first[:3])
    for _ in range(3):
        workspace.restart()
        assert places(workspace) == first
    assert all(place % 64 == 0 for place in first)


def test_a_tensor_from_before_a_restart_frees_nothing_later() -> None:
    workspace = Workspace(2**16)
    before = workspace.empty((16,), torch.float32)
    workspace.restart()
    after = workspace.empty((16,), torch.float32)
    assert after.data_ptr() == before.data_ptr()
    del before
    assert workspace.empty((16,), torch.float32).data_ptr() != after.data_ptr()


def test_types_and_strides_are_what_was_asked_for() -> None:
    workspace = Workspace(2**16)
    for dtype in (torch.bfloat16, torch.float32, torch.int64, torch.bool):
        dense, strided = workspace.empty((2, 3), dtype), workspace.empty_strided((2, 3), (1, 5), dtype)
        assert (dense.dtype, dense.shape, dense.is_contiguous()) == (dtype, (2, 3), True)
        assert (strided.dtype, strided.shape, strided.stride()) == (dtype, (2, 3), (1, 5))
        dense.fill_(1)
        strided.fill_(0)
        assert dense.all()
        assert workspace.holds(dense)
        assert workspace.holds(strided)
    assert workspace.empty_strided((1, 1), (7, 9), torch.float32).shape == (1, 1)
    assert not workspace.holds(torch.zeros(1))


def test_more_than_there_is_is_an_error() -> None:
    workspace = Workspace(1000)
    kept = workspace.empty((200,), torch.float32)
    with pytest.raises(MemoryError, match="a step keeps more than 1000 bytes"):
        workspace.empty((200,), torch.float32)
    del kept
    assert workspace.empty((200,), torch.float32).shape == (200,)
