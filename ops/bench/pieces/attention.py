"""Attention over the paged cache on the CPU: the native backend, the same over keys and values in INT8, and
the one in plain PyTorch, a layer at a time.

    python -m ops.bench attention [--threads 1]

The backends take turns in one process; what is told is the CPU time of a layer's call, of all threads, the
median of many. The layers' caches together are larger than the processor's, and rows lie scattered over
them. The floor is what all threads together spend on reading a step's keys and values once at the bandwidth
that was measured with as many.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from ops.bench import machine
from ops.bench.command_line import parser_of
from ops.bench.machine import Limits

from millstream_worker.engine.brain.batch.plan import Plan, packed_plan
from millstream_worker.engine.runner.attention.interface import AttentionBackend
from millstream_worker.engine.runner.kv.kv_format import KVFormat
from millstream_worker.engine.runner.kv.layer_spec import LayerSpec
from millstream_worker.engine.runner.kv.storage import KVStorage
from millstream_worker.engine.runner.model.attention_choice import choose

BLOCK = 16
_SCALE = 0.02  # of codes, at most: numbers are a few units large
_DIFFERENT = 64  # blocks
CACHES_BYTES = 128 << 20  # of all layers: more than the processor's own
SHAPES = {"9/3 x 64": (9, 3, 64), "16/8 x 128": (16, 8, 128), "4/2 x 64": (4, 2, 64)}  # heads/KV heads x dim


@dataclass(frozen=True, slots=True)
class Rows:
    """`count` rows with `known` tokens that compute `new` ones."""

    count: int
    known: int
    new: int


STEPS: dict[str, tuple[Rows, ...]] = {
    "decode 32 x 128": (Rows(32, 127, 1),),
    "decode 32 x 544": (Rows(32, 543, 1),),
    "decode 32 x 2048": (Rows(32, 2047, 1),),
    "decode 32 x 4096": (Rows(32, 4095, 1),),
    "decode 1 x 2048": (Rows(1, 2047, 1),),
    "mixed 24 x 300 + 256": (Rows(24, 299, 1), Rows(1, 0, 256)),
    "prefill 512": (Rows(1, 0, 512),),
    "prefill 256 of 2048": (Rows(1, 1792, 256),),
}


def main() -> None:
    parser = parser_of("attention", __doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default=machine.precision())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    limits = machine.measure(options.threads)
    print(f"{machine.describe()}, {options.threads} threads, {options.dtype}, {limits}\n")
    print("| heads | step | native ms | INT8 ms | ratio | torch ms | ratio | floor ms | native GB/s |")
    print("|---|---|---|---|---|---|---|---|---|")
    for shape, sizes in SHAPES.items():
        for name, rows in STEPS.items():
            seconds, read_bytes = _measure(sizes, rows, getattr(torch, options.dtype), options.repeats)
            cells = _cells(seconds, read_bytes, limits, options.threads)
            print(f"| {shape} | {name} | {' | '.join(cells)} |", flush=True)


def _cells(seconds: Sequence[float], read_bytes: int, limits: Limits, threads: int) -> list[str]:
    """`seconds` of native, INT8 and torch, of all threads together: wall time is a thread's share of them."""
    native, int8, plain = seconds
    floor = threads * read_bytes / limits.read_bytes_s
    return [
        f"{native * 1e3:.3f}",
        f"{int8 * 1e3:.3f}",
        f"{native / int8:.2f}x",
        f"{plain * 1e3:.3f}",
        f"{plain / native:.1f}x",
        f"{floor * 1e3:.3f}",
        f"{threads * read_bytes / native / 1e9:.1f}",
    ]


def _measure(
    sizes: tuple[int, int, int], rows: Sequence[Rows], dtype: torch.dtype, repeats: int
) -> tuple[list[float], int]:
    """Seconds of a layer with each backend, and the bytes of keys and values that it reads, but in INT8."""
    heads, kv_heads, dim = sizes
    spec = LayerSpec(heads, kv_heads, dim, dim, scale=dim**-0.5)
    plan, blocks = _plan(rows)
    read_bytes = int(plan.kv_lens.sum()) * kv_heads * 2 * dim * dtype.itemsize
    layers = min(64, max(2, CACHES_BYTES // (blocks * BLOCK * spec.token_bytes(dtype))))
    query, key, value = (
        torch.randn(plan.token_count, count, dim).to(dtype) for count in (heads, kv_heads, kv_heads)
    )
    kinds = (("native", spec), ("native", replace(spec, kv_format=KVFormat.INT8)), ("torch", spec))
    backends = [_backend(name, [kind] * layers, blocks, dtype) for name, kind in kinds]
    for backend in backends:
        backend.begin(plan)
    seconds: list[list[float]] = [[] for _ in backends]
    for _ in range(repeats):
        for backend, taken in zip(backends, seconds, strict=True):
            taken.append(_layer_s(backend, layers, query, key, value))
    return [statistics.median(taken) for taken in seconds], read_bytes


def _backend(name: str, layers: Sequence[LayerSpec], blocks: int, dtype: torch.dtype) -> AttentionBackend:
    """Over a storage that is full of random numbers."""
    storage = KVStorage(layers, blocks, BLOCK, dtype, torch.device("cpu"))
    randomize(storage)
    return choose(name, storage.device, dtype).build(storage)


def randomize(storage: KVStorage) -> None:
    """Keys and values of a few units, the same ones every so many blocks: to draw all would take minutes."""
    scales = {id(part) for part in (*storage.key_scales, *storage.value_scales)}
    for part in storage.parts():
        drawn = part[:_DIFFERENT].clone()
        if id(part) in scales:
            drawn.uniform_(_SCALE / 2, _SCALE)
        elif part.dtype == torch.int8:
            drawn.random_(-127, 128)
        else:
            drawn.normal_()
        for first in range(0, len(part), _DIFFERENT):
            part[first : first + _DIFFERENT] = drawn[: len(part) - first]


def _layer_s(
    backend: AttentionBackend, layers: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> float:
    started = time.process_time()
    for layer in range(layers):
        backend.attend(layer, query, key, value)
    return (time.process_time() - started) / layers


def _plan(rows: Sequence[Rows]) -> tuple[Plan, int]:
    """A step of these rows, those that decode first, and their blocks, in random order."""
    each = [row for row in rows for _ in range(row.count)]
    lens = np.array([row.new for row in each], np.int32)
    ends = np.array([row.known + row.new for row in each], np.int32)
    needed = -(-ends // BLOCK)
    free = list(range(int(needed.sum())))
    random.Random(0).shuffle(free)
    table = np.zeros((len(each), int(needed.max())), np.int32)
    for row, count in enumerate(needed):
        table[row, :count] = [free.pop() for _ in range(count)]
    return packed_plan(lens, ends, table, BLOCK), int(needed.sum())


if __name__ == "__main__":
    main()
