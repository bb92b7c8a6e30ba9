"""Plans by hand: pack segments into one `Plan`, without a scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from millstream_worker.engine.brain.batch.plan import Plan, RowLoad, packed_plan
from millstream_worker.engine.protocol.request import SamplingSpec

GREEDY = SamplingSpec(temperature=0.0)


@dataclass(frozen=True)
class Segment:
    """New tokens of one row from position `start` on; `blocks` are all of the row's."""

    slot: int
    tokens: Sequence[int]
    start: int
    blocks: Sequence[int]
    wanted: Sequence[int] = (-1,)  # places among the tokens whose logits are asked for
    from_device: bool = False


def pack(segments: Sequence[Segment], block_size: int, loads: Sequence[RowLoad] = ()) -> Plan:
    """One step of these segments, those with one token first."""
    ordered = sorted(segments, key=lambda segment: len(segment.tokens) > 1)
    lens = [len(segment.tokens) for segment in ordered]
    ends = [segment.start + len(segment.tokens) for segment in ordered]
    table = np.zeros((len(ordered), max(len(segment.blocks) for segment in ordered)), np.int32)
    for row, segment in zip(table, ordered, strict=True):
        row[: len(segment.blocks)] = segment.blocks
    wanted = [(i, place % len(s.tokens)) for i, s in enumerate(ordered) for place in s.wanted]
    plan = packed_plan(lens, ends, table, block_size)
    return replace(
        plan,
        loads=tuple(loads),
        row_slots=np.array([segment.slot for segment in ordered], np.int32),
        tokens=np.array([token for segment in ordered for token in segment.tokens], np.int32),
        from_device=np.repeat([segment.from_device for segment in ordered], lens),
        logit_indices=np.array([plan.query_starts[i] + place for i, place in wanted], np.int32),
        logit_segments=np.array([i for i, _ in wanted], np.int32),
        output_indices=np.zeros(len(wanted), np.int32),
        noise=np.zeros(len(wanted)),
    )


def greedy_loads(slots: Sequence[int]) -> list[RowLoad]:
    return [RowLoad(slot, GREEDY, (), ()) for slot in slots]
