"""The next tokens of the running rows: decode rows first, then chunks of unfinished prefills, each with the
blocks it needs. If blocks run out, rows are preempted until the others fit.

A prompt of a lower lane leaves half of the step's prompt tokens to a row that is about to join: the prompt
may take many steps, and no row joins a step without tokens left.
"""

from __future__ import annotations

from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from millstream_worker.engine.brain.batch.batch import Batch
from millstream_worker.engine.brain.batch.planner import Chunk, Selection
from millstream_worker.engine.brain.running.preemption import victim
from millstream_worker.engine.brain.running.running_rows import RunningRows


def continue_rows(
    running_rows: RunningRows, max_step_tokens: int, prompt_tokens: int, joining: float, now: float
) -> Selection:
    """A selection of the running rows, and the rest of the step's tokens and of its prompt tokens. `joining`:
    priority of the row that is admitted if tokens are left; inf: there is none.
    """
    batch, pool = running_rows.batch, running_rows.pool
    selection = _wanted(running_rows, max_step_tokens, prompt_tokens, joining)
    opening = _starts_block(batch, selection.decodes)
    while (missing := len(opening) + _chunks_blocks(batch, selection) - pool.free) > 0:
        missing -= running_rows.leaving_blocks
        row = victim(running_rows, missing) if missing > 0 else None
        if row is None:  # a launch in flight will free enough blocks
            selection = _shortened(batch, selection, pool.free)
            opening = _starts_block(batch, selection.decodes)
            break
        running_rows.preempt(row, now)
        selection = _wanted(running_rows, max_step_tokens, prompt_tokens, joining)
        opening = _starts_block(batch, selection.decodes)
    for row in batch.at(opening):
        running_rows.grow(row, 1)
    for chunk in selection.chunks:
        running_rows.prefill(chunk)
    return selection


def _wanted(running_rows: RunningRows, max_step_tokens: int, prompt_tokens: int, joining: float) -> Selection:
    """The tokens that the running rows would compute with unlimited blocks. The decode rows always fit the
    step: each was a prefill before, beside the others and within the same number of tokens.
    """
    batch = running_rows.batch
    decodes = batch.decodes()
    budget = min(max_step_tokens - len(decodes), prompt_tokens)
    selection = Selection(decodes, budget, encodes=running_rows.encodes())
    for row in sorted(batch.at(batch.prefilling.nonzero()[0]), key=attrgetter("rank")):
        kept = selection.budget // 2 if row.priority > joining else 0
        if selection.budget:
            chunk = running_rows.next_chunk(row, selection.budget - kept, selection.encodes)
            if chunk.tokens:
                selection.add(chunk)
    return selection


def _chunks_blocks(batch: Batch, selection: Selection) -> int:
    return sum(batch.missing_blocks(chunk.row, chunk.tokens) for chunk in selection.chunks)


def _starts_block(batch: Batch, decodes: NDArray[np.intp]) -> NDArray[np.intp]:
    """The decode slots whose next token begins a block."""
    opening: NDArray[np.intp] = decodes[batch.scheduled[decodes] % batch.block_size == 0]
    return opening


def _shortened(batch: Batch, selection: Selection, free: int) -> Selection:
    """The part of a selection that fits the free blocks, by rank; the other rows skip the step."""
    opening = sorted(batch.at(_starts_block(batch, selection.decodes)), key=attrgetter("rank"))
    denied = np.array([row.slot for row in opening[free:]], np.intp)
    left = np.setdiff1d(selection.decodes, denied)
    short = Selection(left, selection.budget, encodes=selection.encodes)
    free -= len(opening) - len(denied)
    for chunk in selection.chunks:
        held = (len(chunk.row.blocks) + free) * batch.block_size - int(batch.scheduled[chunk.row.slot])
        if held > 0:
            cut = Chunk(chunk.row, min(chunk.tokens, held))
            free -= batch.missing_blocks(cut.row, cut.tokens)
            short.add(cut)
    return short
