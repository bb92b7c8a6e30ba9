"""Keeps pages of KV blocks in host memory, and makes the copies that a plan asks for. The host waits for none
of them.

On a CUDA device pages are pinned and cross the bus on a stream of their own. Out: the blocks are gathered on
the device before the step writes into them, and cross while it computes. In: the step waits for the pages.
The bus's stream takes one copy after the other: no page is read before it was written, or written while it is
read.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from millstream_worker.engine.brain.batch.plan import Int32, Plan
from millstream_worker.engine.protocol.config import EngineConfig
from millstream_worker.engine.protocol.sizes import size_bytes
from millstream_worker.engine.runner.device.transfer import settle
from millstream_worker.engine.runner.kv.pool_size import GIB
from millstream_worker.engine.runner.kv.storage import KVStorage

_MEASURED = 16  # pages
_AUTO_SHARE, _AUTO_MOST = 0.25, 8 * GIB  # of the free memory, on CUDA; the memory is not ours alone


def host_pages(host_swap: str, bytes_per_block: int, device: torch.device, free: int) -> int:
    """Returns the places that the setting `host_swap` allows: "auto", a size (8GiB), or 0 for none. "auto" is
    none on the CPU, where host memory is no further away: give it to the pool. `free`: bytes of host memory.
    Raises ValueError.
    """
    if host_swap.strip().lower() == "auto":
        wanted = 0 if device.type == "cpu" else min(int(free * _AUTO_SHARE), _AUTO_MOST)
        return wanted // bytes_per_block
    size = size_bytes(host_swap)
    if size is None:
        raise ValueError(f'host_swap {host_swap!r}: give "auto", a size (8GiB, 500MB), or 0 for none')
    taken = 1 << (size - 1).bit_length() if size and device.type == "cuda" else size  # so torch pins memory
    if taken > free:
        raise ValueError(
            f"host_swap {host_swap!r}: only {free:,} bytes of host memory are free, and it takes {taken:,}; "
            "give less"
        )
    return size // bytes_per_block


def copied_blocks(config: EngineConfig) -> int:
    """Returns the most blocks copied in one step, each way: as many as a step takes for its new tokens."""
    return config.max_step_tokens // config.block_size + config.max_rows


def copy_bytes(config: EngineConfig, pages: int, bytes_per_block: int) -> int:
    """Returns the bytes that those copies hold on the device while they cross."""
    return 2 * min(copied_blocks(config), pages) * bytes_per_block


def open_swap(
    config: EngineConfig, pages: int, storage: KVStorage, report: Callable[[str], None]
) -> HostSwap | None:
    """Returns host memory for so many blocks, if any. Raises ValueError."""
    if not pages:
        return None
    try:
        swap = HostSwap(storage, pages)
    except RuntimeError as error:  # the system lets so much memory not be pinned
        if config.host_swap.strip().lower() != "auto":
            raise ValueError(f"host_swap {config.host_swap!r}: {error}; give less, or 0 for none") from error
        report(f"no host memory for KV blocks: {error}")
        return None
    report(f"host memory for {pages:,} KV blocks of preempted rows ({pages * config.block_size:,} tokens)")
    return swap


class HostSwap:
    """`pages` places of a block each, over all layers."""

    def __init__(self, storage: KVStorage, pages: int) -> None:
        self._storage = storage
        cuda = storage.device.type == "cuda"
        self._pages = torch.zeros(pages, storage.bytes_per_block, dtype=torch.uint8, pin_memory=cuda)
        self._bus = torch.cuda.Stream(storage.device) if cuda else None  # type: ignore[no-untyped-call]

    @property
    def pages(self) -> int:
        return len(self._pages)

    @torch.inference_mode()
    def apply(self, plan: Plan) -> None:
        """Queue the plan's copies, before its step is launched on the current stream."""
        if len(plan.swap_out):
            self._out(plan.swap_out)
        if len(plan.swap_in):
            self._in(plan.swap_in)

    def block_seconds(self) -> float:
        """Measures how long it takes to bring one block back; call it while the blocks hold nothing."""
        count = min(_MEASURED, len(self._pages), self._storage.blocks)
        pairs = np.repeat(np.arange(count, dtype=np.int32)[:, None], 2, axis=1)
        seconds = []
        for _ in range(3):
            settle(self._storage.device)
            begun = time.perf_counter()
            self._in(pairs)
            settle(self._storage.device)
            seconds.append(time.perf_counter() - begun)
        return min(seconds) / count

    def _out(self, pairs: Int32) -> None:
        gathered = self._storage.copy_out(self._index(pairs[:, 0]))
        if self._bus is None:
            self._pages[self._index(pairs[:, 1])] = gathered
            return
        self._bus.wait_stream(torch.cuda.current_stream(self._storage.device))
        with torch.cuda.stream(self._bus):
            for page, place in zip(gathered, pairs[:, 1].tolist(), strict=True):
                self._pages[place].copy_(page, non_blocking=True)
        gathered.record_stream(self._bus)  # its memory is not the next step's before it has crossed

    def _in(self, pairs: Int32) -> None:
        if self._bus is None:
            arrived = self._pages[self._index(pairs[:, 0])]
        else:
            arrived = self._cross(pairs[:, 0].tolist())
        self._storage.copy_in(self._index(pairs[:, 1]), arrived)

    def _cross(self, places: list[int]) -> Tensor:
        """Returns pages on the device [N, bytes], for the current stream."""
        assert self._bus is not None
        current = torch.cuda.current_stream(self._storage.device)
        arrived = torch.empty(
            len(places), self._storage.bytes_per_block, dtype=torch.uint8, device=self._storage.device
        )
        self._bus.wait_stream(current)  # the memory may still be in use there
        with torch.cuda.stream(self._bus):
            for page, place in zip(arrived, places, strict=True):
                page.copy_(self._pages[place], non_blocking=True)
        current.wait_stream(self._bus)
        return arrived

    def _index(self, numbers: Int32) -> Tensor:
        """Returns numbers on the CPU for places, on the device for blocks: the host must not wait there."""
        index = torch.from_numpy(numbers.astype(np.int64))
        if self._bus is None:
            return index
        return index.pin_memory().to(self._storage.device, non_blocking=True)
