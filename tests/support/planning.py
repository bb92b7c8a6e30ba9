"""Plans by hand: pack segments into one `Plan`, without a scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from millstream_worker.engine.brain.plan import Plan, RowLoad
from millstream_worker.engine.request import SamplingSpec

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
    lens = np.array([len(segment.tokens) for segment in ordered], np.int32)
    starts = np.concatenate(([0], np.cumsum(lens))).astype(np.int32)
    positions = np.concatenate([segment.start + np.arange(len(segment.tokens)) for segment in ordered])
    tables = np.zeros((len(ordered), max(len(segment.blocks) for segment in ordered)), np.int32)
    for table, segment in zip(tables, ordered, strict=True):
        table[: len(segment.blocks)] = segment.blocks
    owner = np.repeat(np.arange(len(ordered)), lens)
    wanted = [(i, place % len(s.tokens)) for i, s in enumerate(ordered) for place in s.wanted]
    slots = tables[owner, positions // block_size].astype(np.int64) * block_size + positions % block_size
    return Plan(
        step=0,
        decodes=int((lens == 1).sum()),
        loads=tuple(loads),
        row_slots=np.array([segment.slot for segment in ordered], np.int32),
        tokens=np.array([token for segment in ordered for token in segment.tokens], np.int32),
        from_device=np.repeat([segment.from_device for segment in ordered], lens),
        positions=positions.astype(np.int32),
        query_lens=lens,
        query_starts=starts,
        kv_lens=np.array([segment.start for segment in ordered], np.int32) + lens,
        block_tables=(tables,),
        slot_mapping=(slots,),
        logit_indices=np.array([starts[i] + place for i, place in wanted], np.int32),
        logit_segments=np.array([i for i, _ in wanted], np.int32),
        output_indices=np.zeros(len(wanted), np.int32),
        noise=np.zeros(len(wanted)),
    )


def greedy_loads(slots: Sequence[int]) -> list[RowLoad]:
    return [RowLoad(slot, GREEDY, (), ()) for slot in slots]
