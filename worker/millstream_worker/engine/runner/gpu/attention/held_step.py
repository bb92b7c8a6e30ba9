"""A step in vectors that never move, so that it can be recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from millstream_worker.engine.brain.batch.plan import Plan
from millstream_worker.engine.runner.attention.interface import StaticSize
from millstream_worker.engine.runner.device.transfer import Arena, Field, to_device
from millstream_worker.engine.runner.gpu.attention.device_step import WIDTHS, DeviceStep
from millstream_worker.engine.runner.gpu.attention.step_layout import StepLayout
from millstream_worker.engine.runner.kv.layer_spec import LayerSpec

# What stands beyond a step's own values; else 0.
_BLANKS = dict.fromkeys(("slots", *WIDTHS), -1)


class HeldStep:
    """`StaticStep` for layers of these layouts. `tables` [rows, width]: by group, shared with other steps."""

    def __init__(
        self, layouts: Sequence[StepLayout], size: StaticSize, tables: Mapping[int, Tensor], block_size: int
    ) -> None:
        self._layouts = list(layouts)
        self._size = size
        self._tables = tables
        sizes = [layout.static_sizes(size, block_size) for layout in layouts]
        self._arena = Arena(
            {
                _name(index, name): Field(
                    count * WIDTHS.get(name, 1),
                    np.int64 if name == "slots" else np.int32,
                    _BLANKS.get(name, 0),
                )
                for index, (named, _) in enumerate(sizes)
                for name, count in named.items()
            },
            next(iter(tables.values())).device,
        )
        self.steps: dict[LayerSpec, DeviceStep] = {}
        for index, (layout, (named, numbers)) in enumerate(zip(layouts, sizes, strict=True)):
            fields: dict[str, Any] = {name: self._vector(index, name) for name in named} | numbers
            self.steps[layout.shape] = DeviceStep(tables=tables[layout.shape.group], **fields)

    def _vector(self, index: int, name: str) -> Tensor:
        vector = self._arena[_name(index, name)]
        return vector.view(-1, WIDTHS[name]) if name in WIDTHS else vector

    def fill(self, plan: Plan) -> None:
        if not self._size.prefix_groups:
            none = np.empty(0, np.int32)
            plan = replace(plan, prefix_group_lens=none, prefix_group_segments=none)
        vectors = {
            _name(index, name): array.reshape(-1)
            for index, layout in enumerate(self._layouts)
            for name, array in layout.arrays(plan)[0].items()
            if name != "tables"
        }
        self._arena.fill(**vectors)
        for group, table in self._tables.items():
            rows = to_device(plan.block_tables[group], table.device)
            table[: rows.shape[0], : rows.shape[1]].copy_(rows)  # what stands beyond is never read


def _name(index: int, name: str) -> str:
    return f"{index}.{name}"
