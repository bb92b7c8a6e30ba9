"""Checks that recorded steps compute and store what the same steps do when they are called from Python.

The recorded one comes first, over places that hold zeros: one that stores nothing, or elsewhere, would
otherwise find there what the other has stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from millstream_worker.engine.brain.batch.plan import Plan
from millstream_worker.engine.runner.device.transfer import to_device
from millstream_worker.engine.runner.forward import Eager
from millstream_worker.engine.runner.kv.storage import KVStorage
from millstream_worker.engine.runner.self_check.deviation import LOGITS_TOLERANCE, Mismatch, compare_logits

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32}  # by bytes of a number


@torch.inference_mode()
def compute(eager: Eager, steps: Iterable[Plan]) -> None:
    """Computes the steps, which puts their keys and values into the storage."""
    for number, plan in enumerate(steps):
        eager.run(_with_tokens(plan, number, eager))


@torch.inference_mode()
def check_replay(
    eager: Eager, replay: Callable[[Plan], Tensor | None], steps: Iterable[Plan]
) -> float | None:
    """Returns the largest deviation of the logits; None if no step was compared, as `replay` returns None for
    one that is not recorded. Raises Mismatch. Writes to the storage and to the last tokens, while there are
    no rows."""
    found = []
    for number, plan in enumerate(steps):
        given = _with_tokens(plan, number, eager)
        what = f"a recorded step of {len(plan.query_lens)} rows and {plan.token_count} tokens"
        places = _Places(eager.storage, given)
        places.clear()
        others = places.others()
        logits = replay(given)
        if logits is None:
            continue
        logits, stored = logits.clone(), places.values()
        places.clear()
        if places.others() != others:
            raise Mismatch(f"{what} changes keys or values of other tokens")
        expected = eager.run(given)
        found.append(compare_logits(logits, expected, what, eager.loaded.rounded_to))
        off = _off(stored, places.values())
        if not off <= LOGITS_TOLERANCE[eager.loaded.rounded_to][1]:
            raise Mismatch(f"{what} stores other keys or values: off by {off:.2g} of the largest of a layer")
    return max(found, default=None)


class _Places:
    """The places of a step's new keys and values, in all layers. `clear` sets them to zeros."""

    def __init__(self, storage: KVStorage, plan: Plan) -> None:
        slots = [to_device(mapping, storage.device) for mapping in plan.slot_mapping]
        caches = storage.keys, storage.values, storage.key_scales, storage.value_scales
        self._parts = [
            (part, slots[layer.group] // storage.block_size, slots[layer.group] % storage.block_size)
            for layer, *parts in zip(storage.layers, *caches, strict=True)
            for part in parts
            if part is not None
        ]
        self._used = 1 + int(max(table.max() for table in plan.block_tables))

    def clear(self) -> None:
        for part, blocks, offsets in self._parts:
            part[blocks, :, offsets] = 0

    def values(self) -> list[Tensor]:
        """Returns what is stored there, [T, kv_heads, dim] each."""
        return [part[blocks, :, offsets] for part, blocks, offsets in self._parts]

    def others(self) -> list[int]:
        """Returns checksums of the step's blocks: of what lies beside these places, while they are clear."""
        used = (part[: self._used] for part, _, _ in self._parts)
        sums = [part.view(_BITS[part.element_size()]).sum(dtype=torch.int64) for part in used]
        found: list[int] = torch.stack(sums).tolist()
        return found


def _off(got: list[Tensor], want: list[Tensor]) -> float:
    """Returns the largest difference, as a share of the largest magnitude of its tensor, where a finite
    number is expected. NaN where none came."""
    found = []
    for one, other in zip(got, want, strict=True):
        finite, one, other = other.isfinite(), one.float(), other.float()
        size = torch.where(finite, other.abs(), 0.0).amax().clamp(min=1e-6)
        found.append(torch.where(finite, (one - other).abs(), 0.0).amax() / size)
    return float(torch.stack(found).amax())


def _with_tokens(plan: Plan, number: int, eager: Eager) -> Plan:
    """Returns the plan with tokens that differ for each number. Those of the device are put there; the plan
    then holds others."""
    vocab_size = eager.loaded.vocab_size
    tokens = ((np.arange(plan.token_count) + 1) * (7919 + number) % vocab_size).astype(np.int32)
    there = np.flatnonzero(plan.from_device)  # decoding rows: a token each
    if len(there):
        slots, sampled = (
            to_device(array.astype(np.int64), eager.last_tokens.device)
            for array in (plan.row_slots[there], tokens[there])
        )
        eager.last_tokens[slots] = sampled
        tokens[there] = (tokens[there] + 1) % vocab_size
    return replace(plan, tokens=tokens)
