"""CUDA graphs (https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs)."""

from __future__ import annotations

import contextlib
import gc
import warnings
from collections.abc import Iterator

import torch

from millstream_worker.engine.runner.device import torch_internals
from millstream_worker.engine.runner.gpu.cuda_graphs.recorder import CannotRecord, Replay


class CudaRecorder:
    """`Recorder` of one device. Its graphs share one pool of memory: they are replayed one after the other,
    on one stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()
        self._graph: torch.cuda.CUDAGraph | None = None

    @contextlib.contextmanager
    def apart(self) -> Iterator[None]:
        torch.cuda.synchronize()
        _free()
        self._stream.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(self._stream):
                yield
        finally:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()  # what warming up took is of no use to other streams

    @contextlib.contextmanager
    def strict(self) -> Iterator[None]:
        before = torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings():  # once a process: that this is a prototype
            warnings.simplefilter("ignore")
            torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        except RuntimeError as error:
            if "synchronizing" not in str(error):
                raise
            raise CannotRecord("its code waits for values of the device in the middle of a step") from error
        finally:
            torch.cuda.set_sync_debug_mode(before)

    def begin(self) -> None:
        self._graph = torch.cuda.CUDAGraph()
        # Other threads may do what they like: those of libraries, and the one that tells of life
        self._graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")

    def end(self) -> Replay:
        graph = self._graph
        assert graph is not None, "nothing is being recorded"
        graph.capture_end()
        self._graph = None
        return graph.replay

    def drop(self) -> None:
        graph, self._graph = self._graph, None
        if graph is None:
            return
        with contextlib.suppress(RuntimeError):  # that the capture is broken is known
            graph.capture_end()
        with contextlib.suppress(RuntimeError):  # torch has done it where the capture itself was sound
            torch_internals.release_pool(torch.cuda.current_device(), self._pool)
        self._pool = torch.cuda.graph_pool_handle()

    def free_bytes(self) -> int:
        torch.cuda.empty_cache()  # what torch keeps for recordings is not free, if no tensor is in it
        free, _ = torch.cuda.mem_get_info(self._device)
        return free

    def start_over(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()  # torch takes none again that all its graphs have left
        _free()


def _free() -> None:
    gc.collect()  # an exception's frames may be a cycle, and hold graphs
    torch.cuda.empty_cache()
