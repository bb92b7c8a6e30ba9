"""Attention with our own Triton kernels, over one KV storage: the backend of CUDA devices.

Computes every kind of layer: grouped heads, head sizes that are no power of two, sliding windows, soft caps,
learned sinks. With TRITON_INTERPRET=1 in the environment of the process the kernels run on the CPU too, which
is how they are tested where there is no GPU.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from millstream_worker.engine.brain.batch.plan import Plan
from millstream_worker.engine.runner.attention.interface import StaticSize, StaticStep
from millstream_worker.engine.runner.attention.triton import flash_prefill, launches
from millstream_worker.engine.runner.attention.triton.device_step import DeviceStep
from millstream_worker.engine.runner.attention.triton.flash_prefill import FlashStep
from millstream_worker.engine.runner.attention.triton.held_step import HeldStep
from millstream_worker.engine.runner.attention.triton.step_layout import StepLayout
from millstream_worker.engine.runner.device.transfer import together
from millstream_worker.engine.runner.kv.layer_spec import LayerSpec
from millstream_worker.engine.runner.kv.storage import KVStorage

_PROGRAMS_PER_PROCESSOR = 4


class TritonAttention:
    """`AttentionBackend` over one storage. What `attend` launches depends on the step's numbers and on the
    sizes of its tensors alone, so that a graph captured with a step serves every step whose vectors are put
    into the same places. `programs`: of a kernel, that keep the device busy; None: as it says itself.
    `flash`: torch's FlashAttention takes the part of prompts that it can, in steps that are not recorded."""

    def __init__(self, storage: KVStorage, programs: int | None = None, *, flash: bool = True) -> None:
        self._storage = storage
        self._shapes = [layer.shape for layer in storage.layers]
        self._steps: dict[LayerSpec, DeviceStep] = {}
        self._flash = flash_prefill.choose(storage) if flash else [None] * len(storage.layers)
        self._flash_steps: dict[int, FlashStep] = {}
        self._tables: dict[int, Tensor] = {}
        if programs is None:
            programs = _PROGRAMS_PER_PROCESSOR * _processors(storage.device)
        self._layouts = [
            StepLayout(shape, storage.dtype.itemsize, programs) for shape in dict.fromkeys(self._shapes)
        ]

    def begin(self, plan: Plan) -> None:
        taken = flash_prefill.taken(plan)
        shapes = {shape for shape, attend in zip(self._shapes, self._flash, strict=True) if attend}
        left = plan.decodes + np.flatnonzero(~taken)
        laid_out = [layout.arrays(plan, left if layout.shape in shapes else None) for layout in self._layouts]
        groups = sorted({shape.group for shape in shapes}) if taken.any() else []
        flash = [flash_prefill.arrays(plan, group, self._storage.block_size) for group in groups]
        arrays = [array for named, _ in laid_out for array in named.values()]
        tensors = iter(together([*arrays, *(array for one in flash for array in one)], self._storage.device))
        self._steps = {}
        for layout, (named, numbers) in zip(self._layouts, laid_out, strict=True):
            fields: dict[str, Any] = {name: next(tensors) for name in named}
            self._steps[layout.shape] = DeviceStep(**fields | numbers)
        self._flash_steps = {
            group: flash_prefill.flash_step(plan, [next(tensors) for _ in one])
            for group, one in zip(groups, flash, strict=True)
        }

    def reserve(self, size: StaticSize) -> HeldStep:
        tables = {shape.group: self._table(shape.group, size) for shape in self._shapes}
        return HeldStep(self._layouts, size, tables, self._storage.block_size)

    def hold(self, step: StaticStep) -> None:
        assert isinstance(step, HeldStep), "a step of another backend"
        self._steps, self._flash_steps = step.steps, {}

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None = None
    ) -> Tensor:
        spec, step = self._storage.layers[layer], self._steps[self._shapes[layer]]
        flash, flash_step = self._flash[layer], self._flash_steps.get(spec.group)
        query = query.to(self._storage.dtype)
        out = query.new_empty(len(query), spec.heads, spec.value_dim)
        launch = launches.LayerLaunch(self._storage, layer, step, query, sinks, out)
        launches.store(launch, key, value)
        if step.decodes:
            launches.decode(launch)
        if flash and flash_step:
            flash_prefill.prefill(flash, flash_step, launch, key, value)
        if len(step.prefill_parts):
            launches.prefill(launch)
        return out

    def _table(self, group: int, size: StaticSize) -> Tensor:
        """[rows, width] int32, the same for all sizes if the largest comes first."""
        table = self._tables.get(group)
        if table is None or table.shape[0] < size.rows or table.shape[1] != size.width:
            shape = (size.rows, size.width)
            table = torch.zeros(shape, dtype=torch.int32, device=self._storage.device)
            self._tables[group] = table
        return table[: size.rows]


def _processors(device: torch.device) -> int:
    if device.type != "cuda":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count
