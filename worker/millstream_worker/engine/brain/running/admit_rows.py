"""Which waiting rows join the batch, and which running ones make room for a row of a higher lane."""

from __future__ import annotations

from math import inf

from millstream_worker.engine.brain.batch.plan import RowLoad
from millstream_worker.engine.brain.batch.planner import Chunk, Draft
from millstream_worker.engine.brain.batch.rows import Row
from millstream_worker.engine.brain.running.preemption import least_loss
from millstream_worker.engine.brain.running.running_rows import Residents


def admit(residents: Residents, draft: Draft, now: float) -> None:
    """Rows in their order until one does not fit, while the draft has budget: those behind that one must
    wait, or they would keep it out for ever."""
    batch = residents.batch
    if not draft.budget or not batch.free_slots:
        return
    for row in residents.waiting.order(now):
        cached = residents.cached_blocks(row)
        if not _may_join(residents, row) or residents.missing_blocks(row, cached) > 0:
            return
        residents.enter(row, cached, now)
        _introduce(residents, row, len(row.blocks) * batch.block_size, draft)
        chunk = Chunk(row, min(batch.unscheduled(row), draft.budget))
        residents.prefill(chunk)
        draft.add(chunk)
        if not draft.budget or not batch.free_slots:
            return


def displace(residents: Residents, now: float) -> None:
    """Preempt rows of a lower lane for the row whose turn it is, if that gives it the room it lacks."""
    batch, waiting = residents.batch, residents.waiting
    if residents.alone is not None or not len(waiting):
        return
    running = batch.running()
    if not waiting.outrank(batch.priority[running]):
        return
    row = next(waiting.order(now))
    if row.origin.request.alone:
        return
    lower = batch.at(running[batch.priority[running] > row.priority])
    # what each would give back: its own blocks, and the one reserved for its growth
    gain = sum(residents.pool.held_once(victim.blocks) + 1 for victim in lower)
    if _shortage(residents, row) > gain:
        return
    while lower and (_shortage(residents, row) > 0 or not (batch.free_slots or residents.leaving)):
        loser = least_loss(residents, lower, _shortage(residents, row))
        lower.remove(loser)
        residents.preempt(loser, now)


def joining(residents: Residents, now: float) -> float:
    """Priority of the waiting row that gets in if the step has tokens for it and that is of a higher lane
    than one that still computes its prompt; inf: there is none."""
    batch, waiting = residents.batch, residents.waiting
    if not batch.free_slots or not waiting.outrank(batch.priority[batch.prefilling]):
        return inf
    row = next(waiting.order(now))
    fits = residents.missing_blocks(row, residents.cached_blocks(row)) <= 0
    return row.priority if fits and _may_join(residents, row) else inf


def _may_join(residents: Residents, row: Row) -> bool:
    """A request that must run alone shares the batch with nobody but its own choices."""
    if residents.alone is not None:
        return residents.alone is row.origin
    return not (row.origin.request.alone and residents.batch.occupied)


def _introduce(residents: Residents, row: Row, cached_tokens: int, draft: Draft) -> None:
    """Load the row's sampling state into its slot; count and report what enters for the first time."""
    request, totals = row.origin.request, residents.totals
    assert row.slot is not None, f"row {row.handle} has no slot"
    draft.loads.append(RowLoad(row.slot, request.sampling, request.prompt, tuple(row.output)))
    hit = min(cached_tokens, len(request.prompt))
    if not row.entered:
        totals.prefix_queried += len(request.prompt)
        totals.prefix_hit += hit
    if not row.origin.entered:
        draft.admitted.append((row, hit))
    row.entered = row.origin.entered = True


def _shortage(residents: Residents, row: Row) -> int:
    """Blocks that a waiting row still lacks once those on their way out are free."""
    return residents.missing_blocks(row, residents.cached_blocks(row)) - residents.leaving_blocks
