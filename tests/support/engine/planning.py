"""Plans by hand: pack segments into one `Plan`, without a scheduler."""

from __future__ import annotations

import random
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


def sharing(plan: Plan, prefix_groups: Sequence[tuple[int, Sequence[int]]]) -> Plan:
    """With prefix groups: tokens shared, and the segments that share them."""
    members = [list(segments) for _, segments in prefix_groups]
    return replace(
        plan,
        prefix_group_lens=np.array([tokens for tokens, _ in prefix_groups], np.int32),
        prefix_group_starts=np.cumsum([0, *map(len, members)]).astype(np.int32),
        prefix_group_segments=np.array([segment for some in members for segment in some], np.int32),
    )


def random_plan(seed: int, rows: int, longest: int = 300) -> Plan:
    """Rows of one token and of up to `longest`, at their begin and far into them, in blocks of 16."""
    chance, segments = random.Random(seed), []
    for slot in range(rows):
        start = chance.choice([0, 0, chance.randrange(3000)])
        count = chance.choice([1, 1, chance.randrange(1, 40), chance.randrange(1, longest)])
        needed = -(-(start + count) // 16)
        segments.append(Segment(slot, [0] * count, start, range(slot * 1000, slot * 1000 + needed)))
    return pack(segments, 16)


def greedy_loads(slots: Sequence[int]) -> list[RowLoad]:
    return [RowLoad(slot, GREEDY, (), ()) for slot in slots]
