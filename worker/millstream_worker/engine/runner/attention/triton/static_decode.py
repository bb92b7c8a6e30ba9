"""A decode step in vectors that never move, so that it can be recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from millstream_worker.engine.brain.batch.plan import Plan
from millstream_worker.engine.runner.attention.triton.device_step import WIDTHS, DeviceStep
from millstream_worker.engine.runner.attention.triton.step_layout import StepLayout
from millstream_worker.engine.runner.device.transfer import Arena, Field, to_device

_BLANKS = {"slots": -1, "decode_parts": -1, "decode_merges": -1, "shared_parts": -1}  # else 0


class StaticDecode:
    """`StaticStep` of `rows` rows of up to `width` blocks of so many tokens, for layers of these layouts:
    what a recorded step reads, at places that stay."""

    def __init__(
        self,
        layouts: Sequence[StepLayout],
        rows: int,
        width: int,
        block_size: int,
        device: torch.device,
        *,
        prefix_groups: bool,
    ) -> None:
        self._layouts = list(layouts)
        self._prefix_groups = prefix_groups
        self._tables = {
            group: torch.zeros(rows, width, dtype=torch.int32, device=device)
            for group in {layout.shape.group for layout in layouts}
        }
        sizes = [
            layout.decode_sizes(rows, width * block_size, prefix_groups=prefix_groups) for layout in layouts
        ]
        self._arena = Arena(
            {
                _name(index, name): Field(
                    size * WIDTHS.get(name, 1),
                    np.int64 if name == "slots" else np.int32,
                    _BLANKS.get(name, 0),
                )
                for index, (named, _) in enumerate(sizes)
                for name, size in named.items()
            },
            device,
        )
        self.steps = {
            layout.shape: DeviceStep(
                tables=self._tables[layout.shape.group],
                **{name: self._vector(index, name) for name in named},
                decodes=rows,
                decode_partials=partials,
                prefill_partials=0,
            )
            for index, (layout, (named, partials)) in enumerate(zip(layouts, sizes, strict=True))
        }

    def _vector(self, index: int, name: str) -> Tensor:
        vector = self._arena[_name(index, name)]
        return vector.view(-1, WIDTHS[name]) if name in WIDTHS else vector

    def fill(self, plan: Plan) -> None:
        if not self._prefix_groups:
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
