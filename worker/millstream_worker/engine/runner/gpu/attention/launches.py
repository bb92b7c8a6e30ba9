"""Launches the Triton kernels for one layer of a step. Grids and constants come from the step's numbers and
from the sizes of its tensors alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from millstream_worker.engine.runner.gpu.attention.decode import decode_kernel, shared_kernel
from millstream_worker.engine.runner.gpu.attention.device_step import DeviceStep
from millstream_worker.engine.runner.gpu.attention.partials import merge_kernel
from millstream_worker.engine.runner.gpu.attention.prefill import prefill_kernel
from millstream_worker.engine.runner.gpu.attention.store import store_kernel
from millstream_worker.engine.runner.gpu.attention.tile_sizes import (
    LEAST_DOT,
    NARROW_HEAD,
    WIDE_HEAD,
    head_bytes,
    padded,
    tile_rows,
    tile_tokens,
)
from millstream_worker.engine.runner.kv.kv_format import KVFormat
from millstream_worker.engine.runner.kv.layer_spec import LayerSpec
from millstream_worker.engine.runner.kv.storage import KVStorage


@dataclass(frozen=True, slots=True, eq=False)
class LayerLaunch:
    """One layer's attention in a step, as its kernels want it."""

    storage: KVStorage
    layer: int
    step: DeviceStep
    query: Tensor  # of the storage's dtype
    sinks: Tensor | None
    out: Tensor

    @property
    def spec(self) -> LayerSpec:
        return self.storage.layers[self.layer]

    @property
    def cache(self) -> tuple[Tensor, ...]:
        """Returns keys, values, and their scales, which the kernels take as whole numbers: a scale and a
        middle as one. Any tensors do for scales that there are none of."""
        keys, values = self.storage.keys[self.layer], self.storage.values[self.layer]
        scales = self.storage.key_scales[self.layer], self.storage.value_scales[self.layer]
        if scales[0] is None or scales[1] is None:
            return keys, values, keys, values
        return keys, values, scales[0].view(torch.int32), scales[1].view(torch.int16)

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        return self.query, *self.cache, self.step.tables

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
    def sizes(self) -> dict[str, Any]:
        spec = self.spec
        return {
            "KEY_DIM": spec.key_dim,
            "VALUE_DIM": spec.value_dim,
            "PAD_KEY": padded(spec.key_dim, LEAST_DOT),
            "PAD_VALUE": padded(spec.value_dim, LEAST_DOT),
            "BLOCK_SIZE": self.storage.block_size,
            "INT8": self._int8,
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
        """Returns the keys of a turn: as many as a processor's shared memory holds several times over,
        queries beside them. Of codes it is half as many: they are widened in registers, of which twice as
        many were too many for a tile."""
        keys = 64 if self._head_bytes <= NARROW_HEAD else 32 if self._head_bytes <= WIDE_HEAD else 16
        return max(LEAST_DOT, keys // 2) if self._int8 else keys

    @property
    def warps(self) -> int:
        """Returns the warps of a program that computes one row. In 16 bits it waits for its keys: with two
        warps, more programs wait side by side, which took up to 5 % less time on an H200. Codes and float32
        keep four."""
        return 2 if self.query.element_size() == 2 and not self._int8 else 4

    @property
    def _int8(self) -> bool:
        return self.spec.kv_format is KVFormat.INT8

    def tile(self, members: int) -> dict[str, int]:
        """Returns the sizes of a kernel whose programs compute `members` rows or tokens. In float32 four
        warps had too few registers for a tile: each thread spilled 17 KB; as in 16 bits where heads are 512
        wide. In others wide heads leave no room for keys loaded ahead. Turns of codes hold half as many keys:
        more of them are loaded ahead, but for heads 512 wide."""
        rows, float32 = padded(members * self.group, LEAST_DOT), self.query.dtype == torch.float32
        widest = self._head_bytes > WIDE_HEAD
        ahead = 2 if widest else 4  # of codes
        return {
            "ROWS": rows,
            "num_warps": 8 if float32 or rows > 64 or widest else 4,
            "num_stages": ahead if self._int8 else 3 if float32 or self._head_bytes <= NARROW_HEAD else 2,
        }

    def partials(self, count: int) -> tuple[Tensor, Tensor]:
        """Allocates `count` partials, and their weights."""
        heads, value_dim = self.spec.heads, self.spec.value_dim
        new = self.out.new_empty
        return (
            new(count, heads, value_dim, dtype=torch.float32),
            new(count, heads, dtype=torch.float32),
        )


def store(launch: LayerLaunch, key: Tensor, value: Tensor) -> None:
    """Stores keys and values, if the layer has its own. It runs first: it answers for tokens that have no
    place."""
    store_kernel[len(launch.query), launch.spec.kv_heads](
        key,
        value,
        *launch.cache,
        launch.step.slots,
        launch.out,
        len(launch.step.slots),
        *key.stride()[:2],
        *value.stride()[:2],
        KV_HEADS=launch.spec.kv_heads,
        GROUP=launch.group,
        **launch.sizes,
        STORES=launch.spec.source is None,
        num_warps=1,  # a program has two vectors: more of them are under way at a time
        enable_fp_fusion=False,  # else codes are not those of PyTorch, to the last bit
    )


def decode(launch: LayerLaunch) -> None:
    spec, step = launch.spec, launch.step
    partials = launch.partials(step.decode_partials)
    if len(step.shared_parts):
        _share(launch, *partials)
    decode_kernel[len(step.decode_parts), spec.kv_heads](
        *launch.inputs,
        step.decode_parts,
        launch.learned_sinks,
        launch.out,
        *partials,
        spec.scale,
        *launch.strides,
        ROWS=padded(launch.group, LEAST_DOT),
        num_warps=launch.warps,
        num_stages=3,
        **launch.shape,
        SINKS=launch.sinks is not None,
    )
    _merge(launch, step.decode_merges, *partials)


def _share(launch: LayerLaunch, partials: Tensor, sums: Tensor) -> None:
    spec, step = launch.spec, launch.step
    shared_kernel[len(step.shared_parts), spec.kv_heads](
        *launch.inputs,
        step.shared_parts,
        step.members,
        step.member_partials,
        partials,
        sums,
        spec.scale,
        *launch.strides,
        **launch.tile(tile_rows(spec, launch.query.element_size())),
        **launch.shape,
    )


def prefill(launch: LayerLaunch) -> None:
    spec, step = launch.spec, launch.step
    tokens = tile_tokens(spec, launch.query.element_size())
    partials = launch.partials(step.prefill_partials)
    prefill_kernel[len(step.prefill_parts), spec.kv_heads](
        *launch.inputs,
        step.kv_lens,
        step.query_lens,
        step.query_starts,
        step.prefill_parts,
        launch.learned_sinks,
        launch.out,
        *partials,
        spec.scale,
        *launch.strides,
        TOKENS=tokens,
        **launch.tile(tokens),
        **launch.shape,
        WINDOW=spec.window or 0,
        SINKS=launch.sinks is not None,
    )
    _merge(launch, step.prefill_merges, *partials)


def _merge(launch: LayerLaunch, merges: Tensor, partials: Tensor, sums: Tensor) -> None:
    if not len(merges):
        return
    merge_kernel[len(merges), launch.spec.heads](
        partials,
        sums,
        merges,
        launch.learned_sinks,
        launch.out,
        **{name: launch.shape[name] for name in ("HEADS", "VALUE_DIM", "PAD_VALUE")},
        SINKS=launch.sinks is not None,
    )
