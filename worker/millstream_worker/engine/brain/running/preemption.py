"""Chooses the row to preempt when blocks run out: the row of the lowest lane that loses least.

A row loses the computed tokens in blocks that nobody else holds: the others stay, and preempting it frees
none of them. With a recurrent state it loses those behind its deepest checkpoint. A row that was preempted
before counts double for each time, so that it is not always the same one. The first row in rank never yields
to rows of its own lane: so one row always reaches its end, and after it the next.
"""

from __future__ import annotations

from operator import attrgetter

from millstream_worker.engine.brain.batch.rows import Row
from millstream_worker.engine.brain.running.running_rows import RunningRows

CANDIDATES = 16  # the youngest rows considered: their blocks are counted one by one


def victim(running_rows: RunningRows, missing: int) -> Row | None:
    """The running row to preempt, to free `missing` blocks for the others; None if only one is left, which
    has the whole pool.
    """
    batch = running_rows.batch
    running = batch.at(batch.running())
    if len(running) < 2:
        return None
    running.remove(min(running, key=attrgetter("rank")))
    return least_loss(running_rows, running, missing)


def least_loss(running_rows: RunningRows, rows: list[Row], missing: int) -> Row:
    """The row to preempt, among those of the lowest lane: of those that free `missing` blocks alone, the one
    that loses least; otherwise the one that frees most. Among equals the youngest.
    """
    lowest = max(row.priority for row in rows)
    youngest = sorted((row for row in rows if row.priority == lowest), key=attrgetter("arrival"))[
        -CANDIDATES:
    ]
    own = {row.arrival: running_rows.pool.held_once(row.blocks) for row in youngest}
    enough = [row for row in youngest if own[row.arrival] >= missing]
    if not enough:
        return max(youngest, key=lambda row: (own[row.arrival], row.arrival))
    return min(enough, key=lambda row: (_loss(running_rows, row, own[row.arrival]), -row.arrival))


def _loss(running_rows: RunningRows, row: Row, own_blocks: int) -> int:
    """Tokens to compute again."""
    scheduled, size = int(running_rows.batch.scheduled[row.slot]), running_rows.batch.block_size
    kept = len(row.blocks) - own_blocks
    if running_rows.states is not None:
        kept = running_rows.states.depth(row.chain, min(len(row.chain), scheduled // size))
    return scheduled - kept * size << min(row.preemptions, 32)
