"""Launches the Triton kernels for one layer of a step. Grids and constants come from the step's numbers and
from the sizes of its tensors alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from millstream_worker.engine.runner.attention.triton.decode import (
    combine_kernel,
    decode_kernel,
    shared_kernel,
)
from millstream_worker.engine.runner.attention.triton.device_step import (
    LEAST_DOT,
    LEAST_PART_KEYS,
    NARROW_HEAD,
    DeviceStep,
    head_bytes,
    padded,
    tile_rows,
    tile_tokens,
)
from millstream_worker.engine.runner.attention.triton.prefill import prefill_kernel
from millstream_worker.engine.runner.attention.triton.store import store_kernel
from millstream_worker.engine.runner.kv.layer_spec import LayerSpec


@dataclass(frozen=True, slots=True, eq=False)
class LayerLaunch:
    """One layer's attention in a step, as its kernels want it."""

    spec: LayerSpec
    step: DeviceStep
    query: Tensor
    keys: Tensor
    values: Tensor
    sinks: Tensor | None
    out: Tensor

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        return self.query, self.keys, self.values, self.step.tables

    @property
    def learned_sinks(self) -> Tensor:
        return self.out if self.sinks is None else self.sinks  # any tensor does where a kernel reads none

    @property
    def strides(self) -> tuple[int, ...]:
        return *self.query.stride()[:2], self.step.tables.stride(0)

    @property
    def group(self) -> int:
        return self.spec.heads // self.spec.kv_heads

    @property
    def sizes(self) -> dict[str, int]:
        spec = self.spec
        return {
            "KEY_DIM": spec.key_dim,
            "VALUE_DIM": spec.value_dim,
            "PAD_KEY": padded(spec.key_dim, LEAST_DOT),
            "PAD_VALUE": padded(spec.value_dim, LEAST_DOT),
            "BLOCK_SIZE": self.keys.shape[2],
        }

    @property
    def shape(self) -> dict[str, Any]:
        spec = self.spec
        return {
            **self.sizes,
            "HEADS": spec.heads,
            "GROUP": self.group,
            "KEYS": self._keys_at_once,
            "SOFTCAP": spec.softcap or 0.0,
        }

    @property
    def _head_bytes(self) -> int:
        return head_bytes(self.spec, self.query.element_size())

    @property
    def _keys_at_once(self) -> int:
        """As many as a processor's shared memory holds several times over, queries beside them."""
        return 64 if self._head_bytes <= NARROW_HEAD else 32 if self._head_bytes <= 512 else 16

    def tile(self, members: int) -> dict[str, int]:
        """Of a kernel whose programs compute so many rows or tokens. In float32 four warps had too few
        registers for a tile: each thread spilled 17 KB. In others wide heads leave no room for keys loaded
        ahead."""
        rows, float32 = padded(members * self.group, LEAST_DOT), self.query.dtype == torch.float32
        return {
            "ROWS": rows,
            "num_warps": 8 if float32 or rows > 64 else 4,
            "num_stages": 3 if float32 or self._head_bytes <= NARROW_HEAD else 2,
        }

    @property
    def parts(self) -> tuple[int, int]:
        return self.step.shared_parts, self.step.parts

    @property
    def visible(self) -> dict[str, Any]:
        return {"WINDOW": self.spec.window or 0, "SINKS": self.sinks is not None}


def store(launch: LayerLaunch, key: Tensor, value: Tensor) -> None:
    spec = launch.spec
    store_kernel[len(key), spec.kv_heads](
        key,
        value,
        launch.keys,
        launch.values,
        launch.step.slots,
        *key.stride()[:2],
        *value.stride()[:2],
        KV_HEADS=spec.kv_heads,
        **launch.sizes,
    )


def decode(launch: LayerLaunch) -> None:
    spec, step = launch.spec, launch.step
    parts = sums = launch.out  # unused where a row has one part
    count = step.shared_parts + step.parts
    if count > 1:
        parts = launch.out.new_empty(step.decodes, spec.heads, count, spec.value_dim, dtype=torch.float32)
        sums = launch.out.new_empty(step.decodes, spec.heads, count, dtype=torch.float32)
    if step.shared_parts:
        _share(launch, parts, sums)
    decode_kernel[step.decodes, spec.kv_heads, step.parts](
        *launch.inputs,
        step.kv_lens,
        step.shared_lens,
        launch.learned_sinks,
        launch.out,
        parts,
        sums,
        spec.scale,
        *launch.parts,
        *launch.strides,
        ROWS=padded(launch.group, LEAST_DOT),
        **launch.shape,
        LEAST=LEAST_PART_KEYS,
        ALONE=count == 1,
        **launch.visible,
    )
    if count > 1:
        _combine(launch, parts, sums)


def _share(launch: LayerLaunch, parts: Tensor, sums: Tensor) -> None:
    spec, step = launch.spec, launch.step
    shared_kernel[len(step.shared_counts), spec.kv_heads, step.shared_parts](
        *launch.inputs,
        step.shared_lens,
        step.members,
        step.shared_firsts,
        step.shared_counts,
        parts,
        sums,
        spec.scale,
        *launch.parts,
        *launch.strides,
        **launch.tile(tile_rows(spec, launch.query.element_size())),
        **launch.shape,
        LEAST=LEAST_PART_KEYS,
    )


def _combine(launch: LayerLaunch, parts: Tensor, sums: Tensor) -> None:
    spec, step = launch.spec, launch.step
    combine_kernel[step.decodes, spec.heads](
        parts,
        sums,
        step.kv_lens,
        step.shared_lens,
        launch.learned_sinks,
        launch.out,
        *launch.parts,
        PAD_PARTS=padded(step.shared_parts + step.parts, 1),
        **{name: launch.shape[name] for name in ("HEADS", "VALUE_DIM", "PAD_VALUE", "KEYS")},
        LEAST=LEAST_PART_KEYS,
        **launch.visible,
    )


def prefill(launch: LayerLaunch) -> None:
    spec, step = launch.spec, launch.step
    tokens = tile_tokens(spec, launch.query.element_size())
    prefill_kernel[len(step.tile_segments), spec.kv_heads](
        *launch.inputs,
        step.kv_lens,
        step.query_lens,
        step.query_starts,
        step.tile_segments,
        step.tile_firsts,
        launch.learned_sinks,
        launch.out,
        spec.scale,
        *launch.strides,
        TOKENS=tokens,
        **launch.tile(tokens),
        **launch.shape,
        **launch.visible,
    )
