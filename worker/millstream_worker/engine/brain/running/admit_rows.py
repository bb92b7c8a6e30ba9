"""Chooses the waiting rows that join the batch, and the running ones that make room for a higher lane's."""

from __future__ import annotations

from math import inf

from millstream_worker.engine.brain.batch.plan import RowLoad
from millstream_worker.engine.brain.batch.planner import Selection
from millstream_worker.engine.brain.batch.rows import Row
from millstream_worker.engine.brain.running.preemption import least_loss
from millstream_worker.engine.brain.running.running_rows import RunningRows

MOST_PASSED = 64  # rows in a step: to look at one takes up to 0.1 ms, with a long prompt


def admit(running_rows: RunningRows, selection: Selection, now: float) -> None:
    """Admit rows in order until one does not fit, while the selection has budget: the rows behind it must
    wait, or they would keep it out for ever. Those that a running row is about to make a checkpoint for are
    passed over until it is there, or that row is gone, and no row behind them takes a slot that they will
    take then: the next document would need the blocks of theirs. Those whose image is to be encoded first are
    passed over until it may be, or is.
    """
    batch, waiting = running_rows.batch, running_rows.waiting
    if not selection.budget or not batch.free_slots:
        return
    passed = awaiting = 0
    for row in waiting.order(now):
        cached = running_rows.cached_blocks(row)
        begins = running_rows.may_begin(row, cached, selection.encodes)
        awaits = running_rows.awaits_state(row, cached)
        if not begins or awaits:
            passed += 1
            awaiting += awaits
            if passed > MOST_PASSED:
                break
            waiting.pass_over(row)
            continue
        if awaiting >= len(batch.free_slots):
            break
        if not _may_join(running_rows, row) or running_rows.missing_blocks(row, cached) > 0:
            break
        running_rows.enter(row, cached, now)
        _introduce(running_rows, row, len(row.blocks) * batch.block_size, selection)
        chunk = running_rows.next_chunk(row, selection.budget, selection.encodes)
        if not chunk.tokens:  # blocks out of host memory lead up to a later image
            selection.encodes.grant()
            chunk = running_rows.next_chunk(row, selection.budget, selection.encodes)
        running_rows.prefill(chunk)
        selection.add(chunk)
        if not selection.budget or not batch.free_slots:
            break
    waiting.restore_passed()


def displace(running_rows: RunningRows, now: float) -> None:
    """Preempt rows of a lower lane for the row whose turn it is, if that frees enough blocks for it."""
    batch, waiting = running_rows.batch, running_rows.waiting
    if running_rows.alone is not None or not len(waiting):
        return
    running = batch.running()
    if not waiting.outrank(batch.priority[running]):
        return
    row = next(waiting.order(now))
    cached = running_rows.cached_blocks(row)
    if (
        row.origin.request.alone
        or running_rows.awaits_state(row, cached)
        or not running_rows.may_begin(row, cached, running_rows.encodes())
    ):
        return
    lower = batch.at(running[batch.priority[running] > row.priority])
    # the blocks that each would free: its own, and the one reserved for its growth
    gain = sum(running_rows.pool.held_once(victim.blocks) + 1 for victim in lower)
    if _shortage(running_rows, row) > gain:
        return
    while lower and (_shortage(running_rows, row) > 0 or not (batch.free_slots or running_rows.leaving)):
        loser = least_loss(running_rows, lower, _shortage(running_rows, row))
        lower.remove(loser)
        running_rows.preempt(loser, now)


def priority_to_admit(running_rows: RunningRows, now: float) -> float:
    """Priority of the waiting row that is admitted if the step has tokens for it and that is of a higher lane
    than a row in prefill; inf: there is none.
    """
    batch, waiting = running_rows.batch, running_rows.waiting
    if not batch.free_slots or not waiting.outrank(batch.priority[batch.prefilling]):
        return inf
    row = next(waiting.order(now))
    cached = running_rows.cached_blocks(row)
    ready = running_rows.missing_blocks(row, cached) <= 0 and not running_rows.awaits_state(row, cached)
    ready = ready and running_rows.may_begin(row, cached, running_rows.encodes())
    return row.priority if ready and _may_join(running_rows, row) else inf


def _may_join(running_rows: RunningRows, row: Row) -> bool:
    """A request that must run alone shares the batch only with its own choices."""
    if running_rows.alone is not None:
        return running_rows.alone is row.origin
    return not (row.origin.request.alone and running_rows.batch.occupied)


def _introduce(running_rows: RunningRows, row: Row, cached_tokens: int, selection: Selection) -> None:
    """Load the row's sampling state into its slot; count and report its first entry into the batch."""
    request, totals = row.origin.request, running_rows.totals
    assert row.slot is not None, f"row {row.handle} has no slot"
    selection.loads.append(RowLoad(row.slot, request.sampling, request.prompt, tuple(row.output)))
    hit = min(cached_tokens, len(request.prompt))
    if not row.entered:
        totals.prefix_queried += len(request.prompt)
        totals.prefix_hit += hit
    if not row.origin.entered:
        selection.admitted.append((row, hit))
    row.entered = row.origin.entered = True


def _shortage(running_rows: RunningRows, row: Row) -> int:
    """Blocks that a waiting row still lacks after those being freed."""
    return running_rows.missing_blocks(row, running_rows.cached_blocks(row)) - running_rows.leaving_blocks
