"""Attention with our own Triton kernels, over one KV storage: the backend of CUDA devices.

Computes every kind of layer: grouped heads, head sizes that are no power of two, sliding windows, soft caps,
learned sinks. With TRITON_INTERPRET=1 in the environment of the process the kernels run on the CPU too, which
is how they are tested where there is no GPU.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from millstream_worker.engine.brain.plan import Int32, Plan
from millstream_worker.engine.runner.attention.interface import LayerSpec
from millstream_worker.engine.runner.attention.triton_decode import combine_kernel, decode_kernel
from millstream_worker.engine.runner.attention.triton_prefill import prefill_kernel
from millstream_worker.engine.runner.attention.triton_store import store_kernel
from millstream_worker.engine.runner.storage import KVStorage
from millstream_worker.engine.runner.transfer import to_device

_PROGRAMS_PER_PROCESSOR = 4
_LEAST_SPLIT_KEYS = 256  # a shorter split costs more to put together than it saves
_MOST_SPLITS = 64
_LEAST_DOT = 16  # sides of a tensor core's matrix product
_PREFILL_ROWS = 64


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """What the layers of one shape share in a step, on the device; int32 where nothing else is said."""

    slots: Tensor  # [T] int64
    tables: Tensor  # [S, W]
    kv_lens: Tensor  # [S]
    query_lens: Tensor  # [S]
    query_starts: Tensor  # [S]
    tile_segments: Tensor  # [N]
    tile_firsts: Tensor  # [N]
    decodes: int
    splits: int
    split_keys: int


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One layer's attention in a step, as its kernels want it."""

    spec: LayerSpec
    step: Step
    query: Tensor
    keys: Tensor
    values: Tensor
    sinks: Tensor | None
    out: Tensor

    @property
    def strides(self) -> tuple[int, ...]:
        return (
            *self.query.stride()[:2],
            self.step.tables.stride(0),
            *self.keys.stride()[:3],
            *self.values.stride()[:3],
        )

    @property
    def shape(self) -> dict[str, Any]:
        spec = self.spec
        return {
            **sizes(spec, self.keys.shape[2]),
            "HEADS": spec.heads,
            "GROUP": spec.heads // spec.kv_heads,
            "KEYS": 64 if max(spec.key_dim, spec.value_dim) <= 128 else 32,
            "WINDOW": spec.window or 0,
            "SOFTCAP": spec.softcap or 0.0,
            "SINKS": self.sinks is not None,
        }


class TritonAttention:
    """`AttentionBackend` over one storage."""

    def __init__(self, storage: KVStorage) -> None:
        self._storage = storage
        self._shapes = [replace(layer, scale=1.0, softcap=None, sinks=False) for layer in storage.layers]
        self._steps: dict[LayerSpec, Step] = {}
        self._programs = _PROGRAMS_PER_PROCESSOR * _processors(storage.device)

    def begin(self, plan: Plan) -> None:
        self._steps = {shape: self._step(plan, shape) for shape in dict.fromkeys(self._shapes)}

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None = None
    ) -> Tensor:
        spec, step = self._storage.layers[layer], self._steps[self._shapes[layer]]
        keys, values = self._storage.keys[layer], self._storage.values[layer]
        _store(spec, step, key, value, keys, values)
        out = values.new_empty(len(query), spec.heads, spec.value_dim)
        call = Call(spec, step, query.to(keys.dtype), keys, values, sinks, out)
        if step.decodes:
            _decode(call)
        if len(step.tile_segments):
            _prefill(call)
        return out

    def _step(self, plan: Plan, shape: LayerSpec) -> Step:
        longest = int(plan.kv_lens[: plan.decodes].max(initial=1))
        longest = longest if shape.window is None else min(longest, shape.window)
        splits, split_keys = split(longest, plan.decodes * shape.kv_heads, self._programs)
        tile_arrays = tiles(plan, _tile_tokens(shape))
        table = plan.block_tables[shape.group]
        arrays = [table, plan.kv_lens, plan.query_lens, plan.query_starts[:-1], *tile_arrays]
        together = to_device(np.concatenate([array.reshape(-1) for array in arrays]), self._storage.device)
        tables, kv_lens, query_lens, starts, segments, firsts = torch.split(
            together, [array.size for array in arrays]
        )
        slots = to_device(plan.slot_mapping[shape.group], self._storage.device)
        tables = tables.view(table.shape)
        return Step(
            slots, tables, kv_lens, query_lens, starts, segments, firsts, plan.decodes, splits, split_keys
        )


def split(longest: int, programs: int, wanted: int) -> tuple[int, int]:
    """Parts that contexts of up to `longest` keys are read in, and keys of a part, when one part each makes
    `programs` programs and the device wants as many as `wanted`. Powers of two only: each number of parts is
    a kernel to compile, in the middle of the batch."""
    most = min(-(-longest // _LEAST_SPLIT_KEYS), _MOST_SPLITS)
    parts = 1 << max(1, min(most, wanted // max(programs, 1))).bit_length() - 1
    keys = -(-longest // parts)
    return parts, -(-keys // 64) * 64


def tiles(plan: Plan, tokens: int) -> tuple[Int32, Int32]:
    """Segment and first token of each prefill tile of up to so many new tokens, long segments first."""
    lens = plan.query_lens[plan.decodes :]
    order = np.argsort(-plan.kv_lens[plan.decodes :], kind="stable")
    counts = -(-lens[order] // tokens)
    segments = np.repeat(order + plan.decodes, counts)
    firsts = (np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)) * tokens
    return segments.astype(np.int32), firsts.astype(np.int32)


def sizes(spec: LayerSpec, block_size: int) -> dict[str, int]:
    return {
        "KEY_DIM": spec.key_dim,
        "VALUE_DIM": spec.value_dim,
        "PAD_KEY": _padded(spec.key_dim, _LEAST_DOT),
        "PAD_VALUE": _padded(spec.value_dim, _LEAST_DOT),
        "BLOCK_SIZE": block_size,
    }


def _store(spec: LayerSpec, step: Step, key: Tensor, value: Tensor, keys: Tensor, values: Tensor) -> None:
    store_kernel[len(key), spec.kv_heads](
        key,
        value,
        keys,
        values,
        step.slots,
        *key.stride()[:2],
        *value.stride()[:2],
        *keys.stride()[:3],
        *values.stride()[:3],
        **sizes(spec, keys.shape[2]),
    )


def _decode(call: Call) -> None:
    spec, step, out = call.spec, call.step, call.out
    shape = call.shape | {"ROWS": _padded(spec.heads // spec.kv_heads, _LEAST_DOT), "SPLITS": step.splits}
    sinks = out if call.sinks is None else call.sinks  # any tensor does where the kernel reads none
    parts = sums = out
    if step.splits > 1:
        parts = out.new_empty(step.decodes, spec.heads, step.splits, spec.value_dim, dtype=torch.float32)
        sums = out.new_empty(step.decodes, spec.heads, step.splits, dtype=torch.float32)
    decode_kernel[step.decodes, spec.kv_heads, step.splits](
        call.query,
        call.keys,
        call.values,
        step.tables,
        step.kv_lens,
        sinks,
        out,
        parts,
        sums,
        spec.scale,
        step.split_keys,
        *call.strides,
        **shape,
    )
    if step.splits > 1:
        names = ("HEADS", "VALUE_DIM", "PAD_VALUE", "SPLITS", "SINKS")
        combine_kernel[step.decodes, spec.heads](
            parts,
            sums,
            sinks,
            out,
            PAD_SPLITS=_padded(step.splits, 1),
            **{name: shape[name] for name in names},
        )


def _prefill(call: Call) -> None:
    spec, step = call.spec, call.step
    tokens = _tile_tokens(spec)
    prefill_kernel[len(step.tile_segments), spec.kv_heads](
        call.query,
        call.keys,
        call.values,
        step.tables,
        step.kv_lens,
        step.query_lens,
        step.query_starts,
        step.tile_segments,
        step.tile_firsts,
        call.out if call.sinks is None else call.sinks,
        call.out,
        spec.scale,
        *call.strides,
        TOKENS=tokens,
        ROWS=_padded(tokens * spec.heads // spec.kv_heads, _LEAST_DOT),
        **call.shape,
    )


def _tile_tokens(spec: LayerSpec) -> int:
    """New tokens of a prefill tile: their query heads of one KV head fill its rows."""
    return max(1, _PREFILL_ROWS // (spec.heads // spec.kv_heads))


def _padded(size: int, least: int) -> int:
    """The next power of two: what Triton's blocks are made of."""
    return max(least, 1 << (size - 1).bit_length())


def _processors(device: torch.device) -> int:
    if device.type != "cuda":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count
