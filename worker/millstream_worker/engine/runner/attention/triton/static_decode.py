"""Decode steps of one size for the Triton kernels, at places that stay: what a recorded step reads. Which
vectors these are, and how much of them a step of no more rows can need, device_step.py says."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from millstream_worker.engine.brain.batch.plan import Plan
from millstream_worker.engine.runner.attention.triton import device_step
from millstream_worker.engine.runner.attention.triton.device_step import DeviceStep
from millstream_worker.engine.runner.device.transfer import Arena, Field, to_device
from millstream_worker.engine.runner.kv.layer_spec import LayerSpec


class StaticDecode:
    """`StaticStep` of `rows` rows of up to `width` blocks, for layers of these shapes."""

    def __init__(
        self,
        shapes: Sequence[LayerSpec],
        rows: int,
        width: int,
        parts: Sequence[tuple[int, int]],  # of each shape: own and shared ones
        device: torch.device,
    ) -> None:
        self._shapes = list(shapes)
        self._tables = {
            group: torch.zeros(rows, width, dtype=torch.int32, device=device)
            for group in {shape.group for shape in shapes}
        }
        sizes = [device_step.decode_sizes(rows, width, shape) for shape in shapes]
        self._arena = Arena(
            {
                _name(index, name): Field(
                    size, np.int64 if name == "slots" else np.int32, device_step.BLANKS.get(name, 0)
                )
                for index, named in enumerate(sizes)
                for name, size in named.items()
                if name != "tables"
            },
            device,
        )
        self.steps = {
            shape: DeviceStep(
                tables=self._tables[shape.group],
                **{name: self._arena[_name(index, name)] for name in named if name != "tables"},
                decodes=rows,
                parts=own,
                shared_parts=shared,
                longest_query=0,
                longest_context=0,
            )
            for index, (shape, named, (own, shared)) in enumerate(zip(shapes, sizes, parts, strict=True))
        }

    def fill(self, plan: Plan) -> None:
        vectors = {
            _name(index, name): array
            for index, shape in enumerate(self._shapes)
            for name, array in device_step.arrays(plan, shape).items()
            if name != "tables"
        }
        self._arena.fill(**vectors)
        for group, table in self._tables.items():
            _put(table, to_device(plan.block_tables[group], table.device))


def _put(table: Tensor, rows: Tensor) -> None:
    """What stands beyond these rows, and beyond their blocks, is never read."""
    table[: rows.shape[0], : rows.shape[1]].copy_(rows)


def _name(index: int, name: str) -> str:
    return f"{index}.{name}"
