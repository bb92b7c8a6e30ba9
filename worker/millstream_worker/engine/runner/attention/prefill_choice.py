"""Which of two ways to prefill a device and a layer get: settled at start, by trying both on the storage
before any row is in it."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from millstream_worker.engine.brain.plan import Plan
from millstream_worker.engine.runner.attention import flash_prefill
from millstream_worker.engine.runner.attention.interface import AttentionBackend, LayerSpec
from millstream_worker.engine.runner.device_clock import device_seconds

_SEGMENTS, _NEW_TOKENS, _CACHED_TOKENS = 4, 512, 1536
_TOLERANCE = 3e-2  # two ways to round in bfloat16, of means of standard normal values
_REPEATS = 5

Way = Callable[[], Tensor]  # attention of the trial's step
Time = Callable[[Way], float]  # seconds of the device


@runtime_checkable
class TwoWays(AttentionBackend, Protocol):
    """A backend that has a way to prefill of its own, and can take torch's."""

    def choose_prefill(self, theirs: flash_prefill.Attend | None, time: Time) -> list[str]: ...


@torch.inference_mode()
def choose_prefill(backend: AttentionBackend, report: Callable[[str], None]) -> None:
    """On the device, before any row is in the storage."""
    if isinstance(backend, TwoWays):
        for line in backend.choose_prefill(flash_prefill.find(), device_seconds):
            report(line)


def compare(ours: Way, theirs: Way, time: Time) -> tuple[bool, str]:
    """Whether theirs is to be used, and why, in words."""
    try:
        theirs_answer = theirs()
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        return False, f"torch's does not run here ({' '.join(str(error).split())[:120]})"
    worst = float((ours() - theirs_answer).abs().max())
    if not worst <= _TOLERANCE:
        return False, f"torch's differs by {worst:.2g}"
    own_ms, other_ms = (statistics.median(time(way) for _ in range(_REPEATS)) * 1e3 for way in (ours, theirs))
    return other_ms < own_ms, f"own kernel {own_ms:.2f} ms, torch's {other_ms:.2f} ms"


def trial_plan(blocks: int, block_size: int) -> Plan | None:
    """Some prompts' next pieces, in the first blocks of the pool; None where it is too small for that."""
    context = _NEW_TOKENS + _CACHED_TOKENS
    width = -(-context // block_size)
    if _SEGMENTS * width > blocks:
        return None
    table = np.arange(_SEGMENTS * width, dtype=np.int32).reshape(_SEGMENTS, width)
    places = np.arange(_CACHED_TOKENS, context)
    slots = table[:, places // block_size].astype(np.int64) * block_size + places % block_size
    segments, tokens = np.arange(_SEGMENTS, dtype=np.int32), _SEGMENTS * _NEW_TOKENS
    return Plan(
        step=0,
        decodes=0,
        loads=(),
        row_slots=segments,
        tokens=np.zeros(tokens, np.int32),
        from_device=np.zeros(tokens, np.bool_),
        positions=np.tile(places, _SEGMENTS).astype(np.int32),
        query_lens=np.full(_SEGMENTS, _NEW_TOKENS, np.int32),
        query_starts=np.arange(_SEGMENTS + 1, dtype=np.int32) * np.int32(_NEW_TOKENS),
        kv_lens=np.full(_SEGMENTS, context, np.int32),
        block_tables=(table,),
        slot_mapping=(slots.reshape(-1),),
        logit_indices=np.empty(0, np.int32),
        logit_segments=np.empty(0, np.int32),
        output_indices=np.empty(0, np.int32),
        noise=np.empty(0),
    )


def trial_tensors(spec: LayerSpec, plan: Plan, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value of the trial's step."""
    shapes = ((spec.heads, spec.key_dim), (spec.kv_heads, spec.key_dim), (spec.kv_heads, spec.value_dim))
    query, key, value = (
        torch.randn(plan.token_count, *shape, device=like.device).to(like.dtype) for shape in shapes
    )
    return query, key, value
