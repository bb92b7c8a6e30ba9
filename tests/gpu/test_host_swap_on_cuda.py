"""Pages that cross the bus beside a device that goes on computing: none is read before it was written."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.engine.host_swaps import copies

from millstream_worker.engine.runner.kv.host_swap import HostSwap
from millstream_worker.engine.runner.kv.kv_format import KVFormat
from millstream_worker.engine.runner.kv.layer_spec import LayerSpec
from millstream_worker.engine.runner.kv.storage import KVStorage

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype"),
]

BLOCKS, PAGES = 256, 128
LAYER = LayerSpec(8, 8, 128, 128, 1.0)


def test_swapped_blocks_come_back_unchanged_after_overwrites() -> None:
    """Each step sends half of the blocks out, overwrites them at once, and brings the last step's back."""
    device = torch.device("cuda")
    storage = KVStorage(
        [LAYER, replace(LAYER, kv_format=KVFormat.INT8)] * 2, BLOCKS, 16, torch.bfloat16, device
    )
    swap = HostSwap(storage, 2 * PAGES)
    numbers = np.arange(PAGES)
    for step in range(20):
        for part in storage.parts():
            part[:PAGES] = step
        out = np.stack((numbers, numbers + PAGES * (step % 2)), axis=1)
        back = np.stack((numbers + PAGES * ((step + 1) % 2), numbers + PAGES), axis=1)
        swap.apply(copies(out.tolist(), back.tolist() if step else []))
        for part in storage.parts():
            part[:PAGES] = -1
        if step:
            assert all(bool((part[PAGES:] == step - 1).all()) for part in storage.parts())
    assert swap.block_seconds() > 0


def test_no_copy_waits_for_the_device() -> None:
    device = torch.device("cuda")
    storage = KVStorage([LAYER], BLOCKS, 16, torch.bfloat16, device)
    swap = HostSwap(storage, PAGES)
    plan = copies([(3, 0), (4, 1)], [(0, 9), (1, 8)])
    swap.apply(plan)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        swap.apply(plan)
    finally:
        torch.cuda.set_sync_debug_mode("default")
