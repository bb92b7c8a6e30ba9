"""An attention backend that can be recorded, in plain operations: each token gathers its row's whole table
and hides what it may not see. For tests on the CPU, where the Triton kernels cannot be recorded."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from millstream_worker.engine.brain.batch.plan import Plan
from millstream_worker.engine.runner.attention.interface import StaticSize
from millstream_worker.engine.runner.attention.torch_backend import TorchAttention
from millstream_worker.engine.runner.device.transfer import Arena, Field
from millstream_worker.engine.runner.kv.kv_format import dequantize, quantize
from millstream_worker.engine.runner.kv.layer_spec import LayerSpec
from millstream_worker.engine.runner.kv.storage import KVStorage


class PlainStatic:
    """`StaticAttention` on top of the plain backend, which computes all that is not held."""

    def __init__(self, storage: KVStorage) -> None:
        self._storage = storage
        self._plain = TorchAttention(storage)
        self._held: PlainStep | None = None

    def begin(self, plan: Plan) -> None:
        self._held = None
        self._plain.begin(plan)

    def reserve(self, size: StaticSize) -> PlainStep:
        return PlainStep(size)

    def hold(self, step: PlainStep) -> None:
        self._held = step

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None = None
    ) -> Tensor:
        if self._held is None:
            return self._plain.attend(layer, query, key, value, sinks)
        return self._attend(self._held, layer, query, key, value, sinks)

    def _attend(
        self, step: PlainStep, layer: int, query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None
    ) -> Tensor:
        spec = self._storage.layers[layer]
        slots, storage = step.arena["slots"], self._storage
        held = step.tables[step.arena["segments"]].long()  # [tokens, width]
        stores = spec.source is None
        keys, values = (
            _stored(codes[layer], scales[layer], slots, new if stores else None, query.dtype)[held]
            for codes, scales, new in (
                (storage.keys, storage.key_scales, key),
                (storage.values, storage.value_scales, value),
            )
        )
        mine = keys.transpose(1, 2).flatten(2, 3)  # [tokens, kv_heads, width * size, dim]
        scores = torch.einsum("rkgd,rknd->rkgn", query.unflatten(1, (spec.kv_heads, -1)) * spec.scale, mine)
        weights = _weights(scores.flatten(1, 2), step.arena["seen"], spec, sinks)
        seen = values.transpose(1, 2).flatten(2, 3)
        unseen = (
            torch.arange(seen.shape[2]) >= step.arena["seen"][:, None]
        )  # whatever lies there: also no number
        seen = seen.masked_fill(unseen[:, None, :, None], 0.0)
        return torch.einsum("rkgn,rknd->rkgd", weights.view_as(scores), seen).flatten(1, 2).contiguous()


class PlainStep:
    """Tokens beyond the step's see 0 keys, and have a slot of -1."""

    def __init__(self, size: StaticSize) -> None:
        fields = {"slots": Field(size.tokens, blank=-1)}
        fields |= {name: Field(size.tokens) for name in ("seen", "segments")}
        self.arena = Arena(fields, torch.device("cpu"))
        self.tables = torch.zeros(size.rows, size.width, dtype=torch.int32)

    def fill(self, plan: Plan) -> None:
        segments = np.repeat(np.arange(len(plan.query_lens)), plan.query_lens)
        self.arena.fill(slots=plan.slot_mapping[0], seen=plan.positions + 1, segments=segments)
        table = torch.from_numpy(np.ascontiguousarray(plan.block_tables[0]))
        self.tables[: len(table), : table.shape[1]].copy_(table)


def _stored(
    codes: Tensor, scales: Tensor | None, slots: Tensor, new: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """All numbers of a layer's keys or values, with the new ones, if it stores any."""
    if new is not None and scales is None:
        _store(codes, slots, new)
    elif new is not None and scales is not None:
        for cache, part in zip((codes, scales), quantize(new, scales.shape[-1]), strict=True):
            _store(cache, slots, part)
    return codes if scales is None else dequantize(codes, scales, dtype)


def _store(cache: Tensor, slots: Tensor, new: Tensor) -> None:
    """Rows that store nothing repeat the first one; where that stores nothing either, all stays."""
    source = torch.where(slots < 0, 0, torch.arange(len(slots)))
    block, offset = slots[source].clamp(min=0) // cache.shape[2], slots[source].clamp(min=0) % cache.shape[2]
    there = cache[block, :, offset]
    cache[block, :, offset] = torch.where(slots[0] < 0, there, new[source])


def _weights(scores: Tensor, seen: Tensor, spec: LayerSpec, sinks: Tensor | None) -> Tensor:
    """Softmax of [tokens, heads, N]; one that sees nothing weighs nothing."""
    if spec.softcap is not None:
        scores = torch.tanh(scores / spec.softcap) * spec.softcap
    place = torch.arange(scores.shape[-1])
    visible = place < seen[:, None]
    if spec.window is not None:
        visible &= place >= seen[:, None] - spec.window
    scores = scores.masked_fill(~visible[:, None], -torch.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks.view(1, -1, 1).expand(len(scores), -1, 1)], -1)
    return scores.softmax(-1).nan_to_num(0.0)[..., : len(place)]
