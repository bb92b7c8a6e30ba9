"""Attention with the compiled library, over one KV storage: the backend of CPUs that have a compiler.

Reads each key and value of a row once, for all its query heads, straight from the paged storage. One call a
layer; all that layers share in a step is laid out once.
"""

from __future__ import annotations

from ctypes import addressof, sizeof

import numpy as np
import torch
from torch import Tensor

from millstream_worker.engine.brain.batch.plan import Plan
from millstream_worker.engine.runner.attention.native import work_items
from millstream_worker.engine.runner.attention.native.short_rows import ShortRows, short
from millstream_worker.engine.runner.kv.layer_spec import LayerSpec
from millstream_worker.engine.runner.kv.storage import KVStorage
from millstream_worker.engine.runner.native import intercept
from millstream_worker.engine.runner.native.library import (
    MOST_DIM,
    LayerNumbers,
    Library,
    StepNumbers,
)


class NativeAttention:
    """`AttentionBackend` over one storage on the CPU, of bfloat16 or float32."""

    def __init__(self, storage: KVStorage, library: Library) -> None:
        assert all(max(layer.key_dim, layer.value_dim) <= MOST_DIM for layer in storage.layers)
        self.library = library
        self._storage = storage
        self._attend = [library.attend[storage.dtype, keys.dtype] for keys in storage.keys]
        shapes = [layer.shape for layer in storage.layers]
        self._shapes = tuple(dict.fromkeys(shapes))
        self._shape_of = [self._shapes.index(shape) for shape in shapes]
        self._layers = [self._layer_numbers(layer) for layer in range(len(storage.layers))]
        self._addresses = [addressof(numbers) for numbers in self._layers]
        self._steps = (StepNumbers * len(self._shapes))()  # where they are, they are in each step
        begin, size = addressof(self._steps), sizeof(StepNumbers)
        self._step_addresses = [begin + shape * size for shape in self._shape_of]
        self._short_rows = [ShortRows(shape, storage.block_size) for shape in self._shapes]
        self._arrays: list[tuple[object, ...]] = []  # that the numbers point into

    def begin(self, plan: Plan) -> None:
        self._arrays.clear()
        if short(plan):
            for number, rows in enumerate(self._short_rows):
                self._steps[number] = rows.lay_out(plan)
            return
        for number, shape in enumerate(self._shapes):
            self._steps[number], arrays = step_numbers(plan, shape)
            self._arrays.append(arrays)

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None = None
    ) -> Tensor:
        dtype, spec = self._storage.dtype, self._storage.layers[layer]
        query = _rows(query, dtype)
        new: tuple[Tensor | None, Tensor | None] = None, None
        strides = *query.stride()[:2], 0, 0, 0, 0
        if spec.source is None:
            new = key, value = _rows(key, dtype), _rows(value, dtype)
            strides = *query.stride()[:2], *key.stride()[:2], *value.stride()[:2]
        out = intercept.empty(query, len(query), spec.heads, spec.value_dim)
        sinks = None if sinks is None else sinks.to(torch.float32).contiguous()
        addresses = self._addresses[layer], self._step_addresses[layer]
        intercept.call(self._attend[layer], (query, *new, sinks, out), *addresses, *strides)
        return out

    def _layer_numbers(self, layer: int) -> LayerNumbers:
        storage, spec = self._storage, self._storage.layers[layer]
        return LayerNumbers(
            heads=spec.heads,
            kv_heads=spec.kv_heads,
            key_dim=spec.key_dim,
            value_dim=spec.value_dim,
            block_size=storage.block_size,
            window=spec.window or 0,
            scale=spec.scale,
            softcap=spec.softcap or 0.0,
            keys=storage.keys[layer].data_ptr(),
            values=storage.values[layer].data_ptr(),
            key_scales=_address(storage.key_scales[layer]),
            value_scales=_address(storage.value_scales[layer]),
        )


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _rows(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """[T, heads, dim] of the storage's type, with the numbers of a head side by side."""
    if tensor.dtype != dtype:
        tensor = tensor.to(dtype)
    return tensor if tensor.stride(2) == 1 else tensor.contiguous()


def step_numbers(plan: Plan, shape: LayerSpec) -> tuple[StepNumbers, tuple[object, ...]]:
    """A step as layers of one shape see it, and the arrays that its numbers point into."""
    cut = work_items.cut(plan, shape)
    table = np.ascontiguousarray(plan.block_tables[shape.group])
    slots = plan.slot_mapping[shape.group]
    arrays = (cut.pieces, cut.splits, table, plan.positions, cut.members, cut.first_parts, slots)
    parts = np.empty((cut.parts, shape.heads, shape.value_dim + 2), np.float32)
    threads = work_items.threads_for(cut.cost * shape.kv_heads)
    numbers = StepNumbers(
        *(array.ctypes.data for array in (*arrays, parts)),
        piece_count=len(cut.pieces),
        split_count=len(cut.splits),
        table_width=table.shape[1],
        tokens=plan.token_count,
        threads=threads,
        together=work_items.together(len(cut.pieces), threads, shape),
    )
    return numbers, (*arrays, parts)
