"""Turns what the scheduler has decided into the arrays of a plan. Decode rows and prefill chunks go one way:
a decode row is a chunk of one token. A step without chunks has less to lay out. No loop over rows here, only
over chunks."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from millstream_worker.engine.brain.batch import Batch, blocks_for
from millstream_worker.engine.brain.noise import uniform
from millstream_worker.engine.brain.plan import Int32, Plan, RowLoad
from millstream_worker.engine.brain.rows import Row
from millstream_worker.engine.brain.sharing import Sharing


@dataclass(frozen=True, slots=True)
class Chunk:
    """The next `tokens` known tokens of a row."""

    row: Row
    tokens: int


@dataclass(slots=True, eq=False)
class Draft:
    """A step as it is being put together. The blocks of all that is in it are in the block table."""

    decodes: NDArray[np.intp]  # slots
    budget: int  # tokens that may still be added
    chunks: list[Chunk] = field(default_factory=list)
    loads: list[RowLoad] = field(default_factory=list)
    admitted: list[tuple[Row, int]] = field(
        default_factory=list
    )  # first row of its request, cached prompt tokens

    def __bool__(self) -> bool:
        return len(self.decodes) > 0 or len(self.chunks) > 0

    def add(self, chunk: Chunk) -> None:
        self.chunks.append(chunk)
        self.budget -= chunk.tokens


@dataclass(frozen=True, slots=True, eq=False)
class Launch:
    """What is remembered of a plan until it is settled: S segments, L draws."""

    slots: NDArray[np.intp]  # [S]
    kv_lens: Int32  # [S]
    drawing: NDArray[np.intp]  # [L] the segments that draw a token
    rows: list[Row]  # [L]
    tokens: int  # computed in the step
    admitted: list[tuple[Row, int]]


def build_plan(step: int, batch: Batch, draft: Draft, sharing: Sharing) -> tuple[Plan, Launch]:
    """The plan of a draft; changes nothing in the batch."""
    decodes = draft.decodes
    slots, query_lens, query_starts = _segments(draft)
    scheduled = batch.scheduled[slots]
    kv_lens = scheduled + query_lens
    tokens, from_device = _inputs(batch, draft)
    positions, slot_mapping = _places(batch, slots, scheduled, query_lens, query_starts)
    drawing = np.flatnonzero(kv_lens >= batch.known[slots])
    drawing_slots = slots[drawing]
    output_indices = kv_lens[drawing] - batch.prompt_len[drawing_slots]
    families = sharing.families(decodes)
    widest = blocks_for(int(kv_lens.max()), batch.block_size)
    plan = Plan(
        step=step,
        decodes=len(decodes),
        loads=tuple(draft.loads),
        row_slots=slots.astype(np.int32),
        tokens=tokens,
        from_device=from_device,
        positions=positions,
        query_lens=query_lens,
        query_starts=query_starts,
        kv_lens=kv_lens,
        block_tables=(batch.block_table[slots, :widest],),
        slot_mapping=(slot_mapping,),
        logit_indices=query_starts[1:][drawing] - 1,
        logit_segments=drawing.astype(np.int32),
        output_indices=output_indices,
        noise=uniform(batch.noise_key[drawing_slots], output_indices),
        family_lens=families.lens,
        family_starts=families.starts,
        family_segments=families.segments,
    )
    return plan, Launch(slots, kv_lens, drawing, batch.at(drawing_slots), len(tokens), draft.admitted)


def _segments(draft: Draft) -> tuple[NDArray[np.intp], Int32, Int32]:
    """Slots and new tokens of the segments, [S] each, and [S + 1] where these begin."""
    decodes, chunks = draft.decodes, draft.chunks
    if not chunks:  # most steps
        return decodes, np.ones(len(decodes), np.int32), np.arange(len(decodes) + 1, dtype=np.int32)
    slots = np.concatenate((decodes, np.array([chunk.row.slot for chunk in chunks], np.intp)))
    query_lens = np.ones(len(slots), np.int32)
    query_lens[len(decodes) :] = [chunk.tokens for chunk in chunks]
    query_starts = np.zeros(len(slots) + 1, np.int32)
    np.cumsum(query_lens, out=query_starts[1:])
    return slots, query_lens, query_starts


def _inputs(batch: Batch, draft: Draft) -> tuple[Int32, NDArray[np.bool_]]:
    """[T] token ids, and which of them only the device knows yet."""
    decodes = draft.decodes
    on_device = batch.scheduled[decodes] >= batch.known[decodes]
    decoded = np.where(on_device, np.int32(0), batch.last_token[decodes])
    if not draft.chunks:
        return decoded, on_device
    tokens = [decoded]
    for chunk in draft.chunks:
        begin = int(batch.scheduled[chunk.row.slot])
        tokens.append(chunk.row.tokens(begin, begin + chunk.tokens))
    packed = np.concatenate(tokens)
    from_device = np.zeros(len(packed), np.bool_)
    from_device[: len(on_device)] = on_device
    return packed, from_device


def _places(
    batch: Batch, slots: NDArray[np.intp], scheduled: Int32, query_lens: Int32, query_starts: Int32
) -> tuple[Int32, NDArray[np.int64]]:
    """[T] position of each token in its row, and its place in the KV cache."""
    positions = scheduled
    if query_starts[-1] > len(slots):  # some segment has several tokens
        positions = np.arange(query_starts[-1], dtype=np.int32)
        positions += np.repeat(scheduled - query_starts[:-1], query_lens)
        slots = np.repeat(slots, query_lens)
    blocks, offsets = np.divmod(positions, np.int32(batch.block_size))
    held = batch.block_table[slots, blocks].astype(np.int64)
    return positions, held * batch.block_size + offsets
