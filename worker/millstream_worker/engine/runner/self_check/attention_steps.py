"""The steps that attention is checked with: contexts around a block, a tile and a part, fresh and later
chunks of prompts, decoding rows many and alone, and prefixes that rows share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from millstream_worker.engine.brain.batch.plan import Int32, Plan, packed_plan

CONTEXTS = (1, 15, 16, 17, 64, 65, 257, 1100)  # tokens of each row after the first step
SHORT_CONTEXTS = (1, 15, 16, 17, 64, 65, 130)  # for the CPU, where nothing depends on longer ones
_LATER = {1: 70, 6: 33, 7: 5}  # row: tokens of a second chunk; the last has keys for several programs
_GROUPS = (3, 70)  # rows of a prefix group; the larger one is more than a tile


def attention_steps(block_size: int, contexts: Sequence[int] = CONTEXTS) -> tuple[list[Plan], int]:
    """Returns the steps in the order in which they are to be computed, and the blocks that they use."""
    rows, lens = np.arange(len(contexts)), np.array(contexts, np.int32)
    width = -(-(max(contexts) + max(_LATER.values()) + 2) // block_size)
    tables = (np.arange(width) * len(rows) + rows[:, None]).astype(np.int32)  # a row's blocks lie apart
    chunks = np.array([_LATER.get(row, 1) for row in range(len(rows))], np.int32)
    order = np.argsort(chunks > 1, kind="stable")
    longest = int(lens.argmax())
    steps = [
        packed_plan(lens, lens, tables, block_size),
        packed_plan(np.ones_like(lens), lens + 1, tables, block_size),
        packed_plan([1], [lens[longest] + 2], tables[[longest]], block_size),
        packed_plan(chunks[order], (lens + 1 + chunks)[order], tables[order], block_size),
    ]
    blocks = tables.size
    if full := max(contexts) // block_size:
        steps += [_prefix_group(tables[longest, :full], members, blocks, block_size) for members in _GROUPS]
        blocks += max(_GROUPS)
    return steps, blocks


def _prefix_group(prefix: Int32, members: int, first: int, block_size: int) -> Plan:
    """One decode step of rows that have `prefix` and, from block `first` on, one block each."""
    own = np.arange(first, first + members, dtype=np.int32)[:, None]
    tables = np.hstack([np.tile(prefix, (members, 1)), own])
    shared = len(prefix) * block_size
    return with_shared_prefix(packed_plan([1] * members, [shared + 1] * members, tables, block_size), shared)


def with_shared_prefix(plan: Plan, tokens: int) -> Plan:
    """With all of the step's rows in one prefix group, which shares so many tokens."""
    rows = len(plan.query_lens)
    return replace(
        plan,
        prefix_group_lens=np.array([tokens], np.int32),
        prefix_group_starts=np.array([0, rows], np.int32),
        prefix_group_segments=np.arange(rows, dtype=np.int32),
    )
