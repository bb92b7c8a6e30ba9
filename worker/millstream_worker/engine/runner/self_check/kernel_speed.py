"""Times attention, layer by layer, and what bounds it on this device: a copy of memory, and a large
matrix product."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch

from millstream_worker.engine.brain.batch.plan import Plan, packed_plan
from millstream_worker.engine.runner.attention.interface import AttentionBackend
from millstream_worker.engine.runner.device.transfer import settle
from millstream_worker.engine.runner.kv.layer_spec import LayerSpec
from millstream_worker.engine.runner.kv.storage import KVStorage
from millstream_worker.engine.runner.self_check.attention_check import random_inputs
from millstream_worker.engine.runner.self_check.attention_steps import with_shared_prefix

ROWS, CONTEXT, SHARED, PROMPT, CHUNK = 64, 1008, 896, 2048, 256  # rows, then tokens
_TIMED_S = 0.05  # at least, of repetitions
_COPIED_BYTES = {"cpu": 2**26, "cuda": 2**28}
_MATRIX = {"cpu": 1024, "cuda": 8192}  # rows and columns


@dataclass(frozen=True, slots=True)
class Speed:
    """`bound`: the rate that the device reaches in what bounds the work; None for the bounds themselves."""

    what: str
    seconds: float
    rate: float  # per second
    unit: str  # B | FLOP
    bound: float | None = None

    @property
    def share(self) -> float | None:
        return self.rate / self.bound if self.bound else None


@dataclass(slots=True, eq=False)
class KernelSpeeds:
    """The speeds of one backend. `bounds` has to be called first."""

    backend_over: Callable[[KVStorage], AttentionBackend]
    dtype: torch.dtype
    device: torch.device
    block_size: int
    _bounds: list[Speed] = field(default_factory=list)

    @torch.inference_mode()
    def bounds(self) -> Iterator[Speed]:
        for bound in (_copy(self.device), _product(self.device, self.dtype)):
            self._bounds.append(bound)
            yield bound

    @torch.inference_mode()
    def of(self, kind: LayerSpec) -> Iterator[Speed]:
        """Times the attention of one layer, each time that of a whole step."""
        work = list(self._work(kind))
        blocks = 1 + max(int(plan.block_tables[0].max()) for _, plan, _, _ in work)
        storage = KVStorage((kind,), blocks, self.block_size, self.dtype, self.device)
        backend = self.backend_over(storage)
        for what, plan, amount, bound in work:
            query, key, value, sinks = random_inputs(kind, plan.token_count, self.dtype, self.device)
            backend.begin(plan)
            seconds = seconds_of(partial(backend.attend, 0, query, key, value, sinks), self.device)
            yield Speed(what, seconds, amount / seconds, bound.unit, bound.rate)

    def _work(self, kind: LayerSpec) -> Iterator[tuple[str, Plan, int, Speed]]:
        """Yields steps, with the bytes read or the operations done in each, and what bounds that."""
        copy, product = self._bounds
        decode, prefix_group, prompt, chunk = _plans(self.block_size)
        token_bytes = kind.token_bytes(self.dtype)
        pair_flops = 2 * kind.heads * (kind.key_dim + kind.value_dim)  # of a query and a key
        read = ROWS * min(CONTEXT, kind.window or CONTEXT) * token_bytes
        yield f"decode, {ROWS} rows of {CONTEXT:,} tokens", decode, read, copy
        if len(prefix_group.prefix_group_lens) and kind.window is None:
            shared = int(prefix_group.prefix_group_lens[0])
            read = (shared + ROWS * (CONTEXT - shared)) * token_bytes
            yield f"decode, {ROWS} rows that share {shared} of them", prefix_group, read, copy
        yield f"prompt of {PROMPT:,} tokens", prompt, _pairs(0, PROMPT, kind) * pair_flops, product
        work = _pairs(PROMPT, CHUNK, kind) * pair_flops
        yield f"chunk of {CHUNK} after {PROMPT:,}", chunk, work, product


def _plans(block_size: int) -> tuple[Plan, Plan, Plan, Plan]:
    """Returns decode, decode with a prefix group, a prompt, and a later chunk of one."""
    width = -(-CONTEXT // block_size)
    tables = np.arange(ROWS * width, dtype=np.int32).reshape(ROWS, width)
    shared = SHARED // block_size * block_size
    common = tables.copy()
    common[:, : shared // block_size] = tables[0, : shared // block_size]
    decode = packed_plan([1] * ROWS, [CONTEXT] * ROWS, tables, block_size)
    group = packed_plan([1] * ROWS, [CONTEXT] * ROWS, common, block_size)
    row = np.arange(-(-(PROMPT + CHUNK) // block_size), dtype=np.int32)[None]
    prompt = packed_plan([PROMPT], [PROMPT], row, block_size)
    chunk = packed_plan([CHUNK], [PROMPT + CHUNK], row, block_size)
    return decode, with_shared_prefix(group, shared) if shared else group, prompt, chunk


def _pairs(before: int, new: int, spec: LayerSpec) -> int:
    """Returns the number of pairs of a query and a key that it sees."""
    seen = np.arange(before + 1, before + new + 1)
    return int(np.minimum(seen, spec.window or seen[-1]).sum())


def _copy(device: torch.device) -> Speed:
    size = _COPIED_BYTES[device.type]
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    seconds = seconds_of(lambda: target.copy_(source), device)
    return Speed(f"copy of {size >> 20} MiB", seconds, 2 * size / seconds, "B")


def _product(device: torch.device, dtype: torch.dtype) -> Speed:
    size = _MATRIX[device.type]
    matrix = torch.ones(size, size, dtype=dtype, device=device)
    seconds = seconds_of(lambda: matrix @ matrix, device)
    return Speed(f"matrix product of {size:,}", seconds, 2 * size**3 / seconds, "FLOP")


def seconds_of(work: Callable[[], object], device: torch.device) -> float:
    """Returns the mean of as many repetitions as take long enough to be timed; compiled and warm."""
    for _ in range(2):
        work()
    settle(device)
    repetitions = 1
    while True:
        begun = time.perf_counter()
        for _ in range(repetitions):
            work()
        settle(device)
        taken = time.perf_counter() - begun
        if taken >= _TIMED_S:
            return taken / repetitions
        repetitions *= 4
