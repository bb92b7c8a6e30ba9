"""Cuts a step into the pieces that threads take: a few new tokens, and keys that they attend to.

All query rows of a piece share each key that is read: the query heads of a key head, of consecutive tokens of
one row, or of decoding rows that begin with the same blocks. A decoding row with a long context becomes
several pieces, whose sums are put together afterwards, so that few rows keep many threads busy. It is cut at
places that depend on its own length alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from millstream_worker.engine.brain.batch.plan import Int32, Int64, Plan
from millstream_worker.engine.runner.attention.tiles import tiles
from millstream_worker.engine.runner.kv.layer_spec import LayerSpec

PART_KEYS = 512  # of a piece of decoding rows; a multiple of the kernel's 64
_ROWS = 96  # query rows of a piece: tokens x query heads of a key head
_KEY_COST = 8  # reading and packing a key, in units of one query row's work on it
_THREAD_COST = 8192  # of one thread's share, in those units: less is done before others wake up
_PIECES_A_THREAD = 4  # with fewer of them the heads of a piece go to different threads


@dataclass(frozen=True, slots=True, eq=False)
class WorkItems:
    """N pieces, the dearest first, and M tokens that are in several of them."""

    pieces: Int32  # [N, 6] segment, first member, members, first key, end key, part or -1
    members: Int32  # tokens: [T] themselves, then those of the prefix groups
    splits: Int32  # [M, 3] token, first part, parts
    first_parts: Int32  # [T] of the tokens in `splits`
    parts: int
    cost: int  # of all of them for one key head, in the units of _KEY_COST


@dataclass(frozen=True, slots=True, eq=False)
class _Spans:
    """Tokens and the range of keys that they attend to together, before it is cut: parallel arrays."""

    segments: Int64
    first_members: Int64
    tokens: Int64
    first_keys: Int64
    end_keys: Int64
    earlier: Int64  # parts of the same tokens that come before

    @property
    def parts(self) -> Int64:
        """Returns how many pieces each span is cut into."""
        return -(-self.end_keys // PART_KEYS) - self.first_keys // PART_KEYS


def cut(plan: Plan, layer: LayerSpec) -> WorkItems:
    """Returns the pieces of a step for a layer of these heads and this window. A layer with a window has no
    prefix groups: its rows soon see nothing of their beginnings."""
    group = layer.heads // layer.kv_heads
    size = max(1, _ROWS // group)
    shared = np.zeros(len(plan.query_lens), np.int64)  # keys that a segment attends to in its prefix group
    members = np.arange(plan.token_count)
    prefix_groups = None
    if layer.window is None and len(plan.prefix_group_lens):
        shared[plan.prefix_group_segments] = np.repeat(
            plan.prefix_group_lens, np.diff(plan.prefix_group_starts)
        )
        members = np.concatenate((members, plan.query_starts[plan.prefix_group_segments]))
        prefix_groups = _prefix_groups(plan, size)
    decodes, others = _own(plan, layer, shared, size)
    total = decodes.parts + decodes.earlier
    several = total > 1
    splits = np.stack((decodes.first_members, np.cumsum(total * several) - total, total), axis=1)[several]
    first_parts = np.zeros(plan.token_count, np.int32)
    first_parts[splits[:, 0]] = splits[:, 1]
    cuts = [_cut(decodes, several) if several.any() else _whole(decodes)]
    if len(others.tokens):
        cuts.append(_whole(others))
    if prefix_groups is not None:
        cuts.append(_cut(prefix_groups, np.ones(len(prefix_groups.tokens), np.bool_)))
    pieces = np.concatenate(cuts)
    costs = (pieces[:, 4] - pieces[:, 3]) * (_KEY_COST + pieces[:, 2] * group)
    return WorkItems(
        pieces=np.ascontiguousarray(pieces[np.argsort(-costs, kind="stable")], np.int32),
        members=members.astype(np.int32),
        splits=splits.astype(np.int32),
        first_parts=first_parts,
        parts=int(total[several].sum()),
        cost=int(costs.sum()),
    )


def cost_of_key(layer: LayerSpec) -> int:
    """Returns the cost of a key for one query token and one key head."""
    return _KEY_COST + layer.heads // layer.kv_heads


def threads_for(cost: int) -> int:
    """Returns 1, or all of torch's threads: a smaller team would end the others' threads, and torch's next
    operation start new ones (https://github.com/pytorch/pytorch/issues/32008)."""
    return torch.get_num_threads() if cost >= 2 * _THREAD_COST else 1


def together(pieces: int, threads: int, layer: LayerSpec) -> int:
    """Returns the number of key heads of a piece that one thread computes."""
    return layer.kv_heads if pieces >= _PIECES_A_THREAD * threads else 1


def _own(plan: Plan, layer: LayerSpec, shared: Int64, size: int) -> tuple[_Spans, _Spans]:
    """Returns each segment's own spans: those of single tokens, and those of more."""
    lens = plan.query_lens.astype(np.int64)
    segments, done, tokens = tiles(lens, size)
    position = plan.kv_lens[segments] - lens[segments] + done
    first = shared[segments]
    if layer.window is not None:
        first = np.maximum(position - layer.window + 1, 0)
    first_members = plan.query_starts[segments] + done
    columns = (segments, first_members, tokens, first, position + tokens, -(-shared[segments] // PART_KEYS))
    single = lens[segments] == 1
    if single.all():
        return _Spans(*columns), _Spans(*(column[:0] for column in columns))
    return _Spans(*(column[single] for column in columns)), _Spans(*(column[~single] for column in columns))


def _prefix_groups(plan: Plan, size: int) -> _Spans:
    """Returns the spans that prefix groups share. Any member's block table holds them."""
    prefix_groups, done, tokens = tiles(np.diff(plan.prefix_group_starts).astype(np.int64), size)
    places = plan.prefix_group_starts[prefix_groups] + done
    none = np.zeros_like(places)
    segments, ends = (
        plan.prefix_group_segments[places],
        plan.prefix_group_lens[prefix_groups].astype(np.int64),
    )
    return _Spans(segments, plan.token_count + places, tokens, none, ends, none)


def _whole(spans: _Spans) -> Int64:
    """Returns a piece for each span, [N, 6]."""
    no_part = np.full(len(spans.tokens), -1)
    return np.stack(
        (spans.segments, spans.first_members, spans.tokens, spans.first_keys, spans.end_keys, no_part), axis=1
    )


def _cut(spans: _Spans, several: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> Int64:
    """Returns the pieces of spans, [N, 6]; those of `several` have numbers."""
    parts = spans.parts
    of = np.repeat(np.arange(len(parts)), parts)
    number = np.arange(len(of)) - np.repeat(np.cumsum(parts) - parts, parts)
    start = (spans.first_keys[of] // PART_KEYS + number) * PART_KEYS
    first, end = np.maximum(spans.first_keys[of], start), np.minimum(spans.end_keys[of], start + PART_KEYS)
    part = np.where(several[of], spans.earlier[of] + number, -1)
    return np.stack((spans.segments[of], spans.first_members[of], spans.tokens[of], first, end, part), axis=1)
