"""Attention with our own Triton kernels, over one KV storage: the backend of CUDA devices.

Computes every kind of layer: grouped heads, head sizes that are no power of two, sliding windows, soft caps,
learned sinks. With TRITON_INTERPRET=1 in the environment of the process the kernels run on the CPU too, which
is how they are tested where there is no GPU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from millstream_worker.engine.brain.batch.plan import Plan
from millstream_worker.engine.runner.attention.interface import StaticSize, StaticStep
from millstream_worker.engine.runner.device.transfer import together
from millstream_worker.engine.runner.gpu.attention import launches
from millstream_worker.engine.runner.gpu.attention.device_step import DeviceStep
from millstream_worker.engine.runner.gpu.attention.held_step import HeldStep
from millstream_worker.engine.runner.gpu.attention.step_layout import StepLayout
from millstream_worker.engine.runner.kv.layer_spec import LayerSpec
from millstream_worker.engine.runner.kv.storage import KVStorage

_PROGRAMS_PER_PROCESSOR = 4


class TritonAttention:
    """`AttentionBackend` over one storage. What `attend` launches depends on the step's numbers and on the
    sizes of its tensors alone, so that a graph captured with a step serves every step whose vectors are put
    into the same places. `programs`: of a kernel, that keep the device busy; None: as it says itself."""

    def __init__(self, storage: KVStorage, programs: int | None = None) -> None:
        self._storage = storage
        self._shapes = [layer.shape for layer in storage.layers]
        self._steps: dict[LayerSpec, DeviceStep] = {}
        self._tables: dict[int, Tensor] = {}
        if programs is None:
            programs = _PROGRAMS_PER_PROCESSOR * _processors(storage.device)
        self._layouts = [
            StepLayout(shape, storage.dtype.itemsize, programs) for shape in dict.fromkeys(self._shapes)
        ]

    def begin(self, plan: Plan) -> None:
        laid_out = [layout.arrays(plan) for layout in self._layouts]
        arrays = [array for named, _ in laid_out for array in named.values()]
        tensors = iter(together(arrays, self._storage.device))
        self._steps = {}
        for layout, (named, numbers) in zip(self._layouts, laid_out, strict=True):
            fields: dict[str, Any] = {name: next(tensors) for name in named}
            self._steps[layout.shape] = DeviceStep(**fields | numbers)

    def reserve(self, size: StaticSize) -> HeldStep:
        tables = {shape.group: self._table(shape.group, size) for shape in self._shapes}
        return HeldStep(self._layouts, size, tables, self._storage.block_size)

    def hold(self, step: StaticStep) -> None:
        assert isinstance(step, HeldStep), "a step of another backend"
        self._steps = step.steps

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None = None
    ) -> Tensor:
        spec, step = self._storage.layers[layer], self._steps[self._shapes[layer]]
        query = query.to(self._storage.dtype)
        out = query.new_empty(len(query), spec.heads, spec.value_dim)
        launch = launches.LayerLaunch(self._storage, layer, step, query, sinks, out)
        launches.store(launch, key, value)
        if step.decodes:
            launches.decode(launch)
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
