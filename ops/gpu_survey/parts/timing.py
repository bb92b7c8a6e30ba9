"""Steps to be timed, and the time that a device takes for something."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from support.engine.planning import Segment, pack, sharing

from millstream_worker.engine.brain.batch.plan import Plan

BLOCK = 16
Rows = Sequence[tuple[int, int]]  # tokens cached before the step, new ones


def plan_of(rows: Rows, shared: int = 0, *, prefix_groups: bool = False) -> Plan:
    """A step of such rows, in blocks from anywhere; the first `shared` blocks are the same, and read once."""
    counts = [-(-(cached + new) // BLOCK) - shared for cached, new in rows]
    blocks = (np.random.default_rng(0).permutation(sum(counts)) + shared).tolist()
    tables = [[*range(shared), *(blocks.pop() for _ in range(count))] for count in counts]
    segments = [
        Segment(row, [(5 + 31 * row + 7 * place) % 1000 for place in range(new)], cached, table)
        for row, ((cached, new), table) in enumerate(zip(rows, tables, strict=True))
    ]
    groups = [(shared * BLOCK, range(len(rows)))] if prefix_groups else []
    return sharing(pack(segments, BLOCK), groups)


def median_ms(run: Callable[[], object], times: int = 9) -> float:
    """By the device's clock; on the CPU by the host's."""
    run()
    return statistics.median(_once_ms(run) for _ in range(times))


def _once_ms(run: Callable[[], object]) -> float:
    if not torch.cuda.is_available():
        before = time.perf_counter()
        run()
        return 1e3 * (time.perf_counter() - before)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    run()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end))


def graph_us(run: Callable[[], object]) -> float:
    """Microseconds of the device for what `run` launches, recorded as a CUDA graph: without the host's time.
    It has run before, so that nothing is compiled or loaded in the capture."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        run()
    return 1e3 * median_ms(graph.replay)
