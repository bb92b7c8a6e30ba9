"""The engine's statistics, reported after each step."""

from __future__ import annotations

from millstream_worker.engine.brain.running.running_rows import RunningRows
from millstream_worker.engine.protocol.outputs import EngineStats


def engine_stats(running_rows: RunningRows, step_s: float = 0.0, step_tokens: int = 0) -> EngineStats:
    """Current state, and totals since the start; for a settled step, its seconds and tokens."""
    pool, batch, totals = running_rows.pool, running_rows.batch, running_rows.totals
    images = running_rows.images
    return EngineStats(
        rows_running=batch.occupied - len(running_rows.leaving),
        rows_waiting=len(running_rows.waiting),
        free_rows=len(batch.free_slots),
        blocks_used=pool.total - pool.free,
        blocks_cached=pool.cached,
        blocks_free=pool.free - pool.cached,
        step_s=step_s,
        step_tokens=step_tokens,
        prefix_queried_total=totals.prefix_queried,
        prefix_hit_total=totals.prefix_hit,
        prompt_computed_total=totals.prompt_computed,
        output_total=totals.output,
        preemptions_total=totals.preemptions,
        swapped_out_total=pool.host.kept if pool.host else 0,
        swapped_in_total=pool.host.fetched if pool.host else 0,
        states_saved_total=running_rows.states.saved if running_rows.states else 0,
        states_loaded_total=running_rows.states.loaded if running_rows.states else 0,
        image_units_total=images.encoded if images else 0,
        image_s_total=images.encode_s if images else 0.0,
        image_bytes=images.bytes_held if images else 0,
        drafted_total=totals.drafted,
        accepted_total=totals.accepted,
        masked_rows_total=totals.masked,
        forced_total=totals.forced,
    )
