"""Attention with the compiled library, over one KV storage: the backend of CPUs that have a compiler.

Reads each key and value of a row once, for all its query heads, straight from the paged storage. One call a
layer; all that layers share in a step is laid out once.
"""

from __future__ import annotations

from ctypes import addressof
from dataclasses import dataclass, replace

import numpy as np
import torch

from millstream_worker.engine.brain.plan import Plan
from millstream_worker.engine.runner.attention.interface import LayerSpec
from millstream_worker.engine.runner.native import pieces
from millstream_worker.engine.runner.native.library import (
    MOST_DIM,
    LayerNumbers,
    Library,
    StepNumbers,
)
from millstream_worker.engine.runner.storage import KVStorage

_THREAD_COST = 8192  # of one thread's share, in the units of `pieces`: less is done before others wake up
_PIECES_A_THREAD = 4  # with fewer of them the heads of a piece go to different threads


@dataclass(frozen=True, slots=True, eq=False)
class LayerStep:
    """A step as layers of one shape see it, and the arrays that its numbers point into."""

    numbers: StepNumbers
    address: int  # of the numbers
    arrays: tuple[object, ...]


class NativeAttention:
    """`AttentionBackend` over one storage on the CPU, of bfloat16 or float32."""

    def __init__(self, storage: KVStorage, library: Library) -> None:
        assert all(max(layer.key_dim, layer.value_dim) <= MOST_DIM for layer in storage.layers)
        self._storage = storage
        self._attend = library.attend(storage.dtype)
        shapes = [replace(layer, scale=1.0, softcap=None, sinks=False) for layer in storage.layers]
        self._shapes = tuple(dict.fromkeys(shapes))
        self._shape_of = [self._shapes.index(shape) for shape in shapes]
        self._layers = [self._layer_numbers(layer) for layer in range(len(storage.layers))]
        self._addresses = [addressof(numbers) for numbers in self._layers]
        self._steps: tuple[LayerStep, ...] = ()  # by shape

    def begin(self, plan: Plan) -> None:
        self._steps = tuple(_layer_step(plan, shape) for shape in self._shapes)

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        dtype, spec = self._storage.dtype, self._storage.layers[layer]
        query, key, value = _rows(query, dtype), _rows(key, dtype), _rows(value, dtype)
        out = value.new_empty(len(query), spec.heads, spec.value_dim)
        sinks = None if sinks is None else sinks.to(torch.float32).contiguous()
        query_token, query_head, _ = query.stride()
        key_token, key_head, _ = key.stride()
        value_token, value_head, _ = value.stride()
        self._attend(
            self._addresses[layer],
            self._steps[self._shape_of[layer]].address,
            query.data_ptr(),
            query_token,
            query_head,
            key.data_ptr(),
            key_token,
            key_head,
            value.data_ptr(),
            value_token,
            value_head,
            None if sinks is None else sinks.data_ptr(),
            out.data_ptr(),
        )
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
        )


def _rows(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """[T, heads, dim] of the storage's type, with the numbers of a head side by side."""
    if tensor.dtype != dtype:
        tensor = tensor.to(dtype)
    return tensor if tensor.stride(2) == 1 else tensor.contiguous()


def _layer_step(plan: Plan, shape: LayerSpec) -> LayerStep:
    cut = pieces.cut(plan, shape)
    table = np.ascontiguousarray(plan.block_tables[shape.group])
    slots = plan.slot_mapping[shape.group]
    arrays = (cut.pieces, cut.splits, table, plan.positions, cut.members, cut.first_parts, slots)
    parts = np.empty((cut.parts, shape.heads, shape.value_dim + 2), np.float32)
    threads = _threads(cut.cost * shape.kv_heads)
    numbers = StepNumbers(
        *(array.ctypes.data for array in (*arrays, parts)),
        piece_count=len(cut.pieces),
        split_count=len(cut.splits),
        table_width=table.shape[1],
        tokens=plan.token_count,
        threads=threads,
        together=shape.kv_heads if len(cut.pieces) >= _PIECES_A_THREAD * threads else 1,
    )
    return LayerStep(numbers, addressof(numbers), (*arrays, parts))


def _threads(cost: int) -> int:
    """One, or all of torch's: a smaller team would end the others' threads, and torch's next operation start
    new ones (https://github.com/pytorch/pytorch/issues/32008)."""
    return torch.get_num_threads() if cost >= 2 * _THREAD_COST else 1
