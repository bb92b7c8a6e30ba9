"""The recorder of a CUDA device, with a stand-in for torch's side of it: streams, and pools of memory with
the number of graphs that hold them."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from millstream_worker.engine.runner.gpu.cuda_graphs.cuda import CudaRecorder


class StandIn:
    """As torch's allocator counts: a capture takes a pool, and gives it back when its graph is gone. If the
    capture is broken, neither happens of itself."""

    def __init__(self) -> None:
        self.streams = self.pools = self.emptied = 0
        self.holders: Counter[int] = Counter()
        self.recording: set[int] = set()

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        nothing: Any = lambda *_: None  # noqa: E731
        for name, stand_in in {
            "Stream": self.stream, "stream": lambda _: nullcontext(), "synchronize": nothing,
            "current_stream": nothing, "current_device": lambda: 0, "empty_cache": self.empty_cache,
            "graph_pool_handle": self.pool, "CUDAGraph": lambda: Graph(self),
        }.items():  # fmt: skip
            monkeypatch.setattr(torch.cuda, name, stand_in)
        monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", self.end_allocation)
        monkeypatch.setattr(torch._C, "_cuda_releasePool", self.release)

    def stream(self, _: torch.device) -> Any:
        self.streams += 1
        return SimpleNamespace(wait_stream=lambda _: None)

    def pool(self) -> int:
        self.pools += 1
        return self.pools

    def empty_cache(self) -> None:
        self.emptied += 1

    def end_allocation(self, _: int, pool: int) -> None:
        if pool not in self.recording:
            raise RuntimeError("not currently recording to this pool")
        self.recording.remove(pool)

    def release(self, _: int, pool: int) -> None:
        self.holders[pool] -= 1


class Graph:
    def __init__(self, stand_in: StandIn) -> None:
        self._stand_in = stand_in
        self._pool = 0
        self.broken = self.ended = False

    def capture_begin(self, pool: int, capture_error_mode: str) -> None:
        known = pool in self._stand_in.holders
        assert not known or self._stand_in.holders[pool], (
            "torch takes no pool again that all graphs have left"
        )
        self._pool = pool
        self._stand_in.holders[pool] += 1
        self._stand_in.recording.add(pool)

    def capture_end(self) -> None:
        if self.broken:
            raise RuntimeError("operation failed due to a previous error during capture")
        self._stand_in.end_allocation(0, self._pool)
        self.ended = True

    def replay(self) -> None: ...

    def __del__(self) -> None:
        if self.ended:
            self._stand_in.release(0, self._pool)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    found = StandIn()
    found.install(monkeypatch)
    return found


def recorder_of(device: StandIn) -> CudaRecorder:
    return CudaRecorder(torch.device("cuda"))


def record(recorder: CudaRecorder) -> Any:
    recorder.begin()
    try:
        return recorder.end()
    finally:
        recorder.drop()


def test_recordings_share_a_pool(device: StandIn) -> None:
    recorder = recorder_of(device)
    replays = [record(recorder) for _ in range(3)]
    assert device.holders == {1: 3}
    del replays
    assert device.holders[1] == 0


def test_a_broken_recording_leaves_no_memory_or_stream(device: StandIn) -> None:
    recorder = recorder_of(device)
    replay = record(recorder)
    recorder.begin()
    assert recorder._graph is not None
    recorder._graph.broken = True
    recorder.drop()
    assert device.holders == {1: 1}, "the sound recording's own"
    assert not device.recording
    replay = record(recorder)
    assert +device.holders == {2: 1}
    assert device.streams == 1
    del replay


def test_a_recording_that_ends_early_is_released_once(device: StandIn) -> None:
    """As when memory runs out: the capture itself is sound."""
    recorder = recorder_of(device)
    recorder.begin()
    recorder.drop()
    assert device.holders == {1: 0}
    recorder.drop()
    record(recorder)
    assert device.holders == {1: 0, 2: 0}


def test_starting_over_frees_memory_and_uses_a_new_pool(device: StandIn) -> None:
    recorder = recorder_of(device)
    with recorder.apart():
        replay, emptied = record(recorder), device.emptied
        del replay
        recorder.start_over()
        assert device.emptied == emptied + 1
        replay = record(recorder)
    assert device.holders == {1: 0, 2: 1}
    assert device.streams == 1
    del replay
