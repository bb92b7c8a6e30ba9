"""What runs in the next step: the brain's face to the batch loop. It touches no device, no clock and no
socket.

    plan()    running rows first (decode, then prefill chunks), then admissions, within `max_step_tokens`
    settle()  the oldest outstanding plan: tokens to their rows, rows that are over out of the batch

With a pipeline depth of 1 a plan is made while the one before it still runs: a row's next token is then taken
from the device, and what was drawn after a row's end is dropped.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from millstream_worker.engine.brain.admission import admit, displace
from millstream_worker.engine.brain.arrivals import Arrivals, Refusal
from millstream_worker.engine.brain.batch import Batch, blocks_for
from millstream_worker.engine.brain.blocks import BlockPool
from millstream_worker.engine.brain.plan import Drawn, Plan
from millstream_worker.engine.brain.planner import Launch, build_plan
from millstream_worker.engine.brain.residents import Residents
from millstream_worker.engine.brain.rows import Row, RowState
from millstream_worker.engine.brain.running import continue_rows
from millstream_worker.engine.brain.waiting import WaitingRows
from millstream_worker.engine.frames import EngineStats
from millstream_worker.engine.request import EngineRequest

__all__ = ["Refusal", "Scheduler", "SchedulerConfig", "Settled"]


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    max_rows: int
    max_step_tokens: int  # new tokens computed in one step
    block_size: int  # tokens
    blocks: int
    context_length: int  # most tokens of a row, prompt and output
    prefix_cache: bool  # without it, only the choices of one request share blocks
    hash_seed: bytes  # model, KV dtype: whatever makes the KV of equal tokens differ
    pipeline_depth: int = 0
    salted: bool = True  # blocks are shared only within one salt
    patience_s: float = 10.0  # a row that has waited so long gets its turn whatever its lane

    def __post_init__(self) -> None:
        for name in ("max_rows", "max_step_tokens", "block_size", "blocks", "context_length"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1 (got {getattr(self, name)})")
        if self.pipeline_depth not in (0, 1):
            raise ValueError(f"pipeline_depth must be 0 or 1 (got {self.pipeline_depth})")


@dataclass(frozen=True, slots=True)
class Settled:
    """What a step brought, in the lists of a Step frame."""

    handles: list[int]
    tokens: list[int]
    finished: list[tuple[int, str]]
    admitted: list[tuple[int, int]]
    logprobs: list[tuple[int, float, list[int], list[float]]]


class Scheduler:
    """All times are seconds of one monotonic clock, passed in."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config
        self._arrivals = Arrivals(
            context_length=config.context_length,
            capacity=config.blocks * config.block_size,
            block_size=config.block_size,
            hash_seed=config.hash_seed,
            prefix_cache=config.prefix_cache,
            salted=config.salted,
        )
        pool = BlockPool(config.blocks)
        self._batch = Batch(
            config.max_rows, blocks_for(self._arrivals.longest, config.block_size), config.block_size
        )
        self._waiting = WaitingRows(config.patience_s, lambda row: pool.estimate(row.chain))
        self._residents = Residents(pool, self._batch, self._waiting)
        self._rows: dict[int, Row] = {}  # by handle; neither over nor aborted
        self._outstanding: deque[Launch] = deque()
        self._over: list[tuple[int, str]] = []
        self._planned = 0

    @property
    def idle(self) -> bool:
        """Nothing to plan, nothing in flight, nothing to report."""
        return not (self._waiting or self._batch.occupied or self._outstanding or self._over)

    def add(self, request: EngineRequest, now: float) -> Refusal | None:
        """Queue every choice that is not done; refuse what could never run."""
        refusal = self._arrivals.refuse(request)
        if refusal is not None:
            return refusal
        for row in self._arrivals.rows(request):
            assert row.handle not in self._rows, f"handle {row.handle} is taken"
            reason = row.finish_reason()  # an end that an earlier attempt did not live to report
            if reason is not None:
                self._over.append((row.handle, reason))
            else:
                self._rows[row.handle] = row
                self._waiting.add(row, now)
        return None

    def take_finished(self) -> list[tuple[int, str]]:
        """(handle, reason) of choices that were at their end when added. The next step reports those not
        taken."""
        over, self._over = self._over, []
        return over

    def abort(self, handles: Iterable[int]) -> None:
        """Nothing more is said about these rows; unknown handles are ignored."""
        gone = set(handles)
        self._over = [(handle, reason) for handle, reason in self._over if handle not in gone]
        for handle in gone & self._rows.keys():
            row = self._rows.pop(handle)
            if row.state is RowState.WAITING:
                self._waiting.remove(row)
                row.move(RowState.ENDED)
            else:
                self._residents.abort(row)

    def plan(self, now: float) -> Plan | None:
        """The next step, which the caller must launch. None: nothing can be computed before the outstanding
        plan is settled or, where there is none, before something is added."""
        assert len(self._outstanding) <= self.config.pipeline_depth, "settle the oldest plan first"
        displace(self._residents, now)
        draft = continue_rows(self._residents, self.config.max_step_tokens, now)
        admit(self._residents, draft, now)
        if not draft:
            return None
        plan, launch = build_plan(self._planned, self._batch, draft)
        self._batch.launch(launch.slots, launch.kv_lens)
        self._outstanding.append(launch)
        self._planned += 1
        return plan

    def settle(self, drawn: Drawn, now: float) -> Settled:
        """Take what the oldest outstanding plan has drawn."""
        launch = self._outstanding.popleft()
        admitted = [(row.origin.request.handle, cached) for row, cached in launch.admitted if row.lives]
        self._batch.settle(launch.slots, launch.kv_lens, launch.drawing, drawn.tokens)
        finished = self.take_finished() + self._end_broken(launch, drawn)
        tokens: list[int] = drawn.tokens.tolist()
        dropped, ended = self._append(launch.rows, tokens)
        self._publish_output(launch)
        for row, reason in ended:
            del self._rows[row.handle]
            self._residents.retire(row)
            finished.append((row.handle, reason))
        self._residents.let_go(now)
        handles = [row.handle for row in launch.rows]
        for index in reversed(dropped):
            del handles[index], tokens[index]
        self._residents.totals.steps += 1
        self._residents.totals.output += len(tokens)
        return Settled(handles, tokens, finished, admitted, _logprobs(drawn, dropped))

    def _append(self, rows: list[Row], tokens: list[int]) -> tuple[list[int], list[tuple[Row, str]]]:
        """Give each row its token; returns the indices of draws to drop, and the rows that are over and
        why."""
        dropped: list[int] = []
        ended: list[tuple[Row, str]] = []
        for index, (row, token) in enumerate(zip(rows, tokens, strict=True)):
            if row.state is RowState.ENDING:  # aborted, broken, or over one token before
                dropped.append(index)
                continue
            row.output.append(token)
            if token in row.end_ids or len(row.output) >= row.max_output:
                reason = row.finish_reason()
                if reason is not None:
                    ended.append((row, reason))
        return dropped, ended

    def _end_broken(self, launch: Launch, drawn: Drawn) -> list[tuple[int, str]]:
        """End rows whose logits were no numbers, and share their blocks with nobody: the cause may be in
        there."""
        broken = [row for row in (launch.rows[index] for index in drawn.broken) if row.lives]
        for row in broken:
            self._residents.pool.forget(row.blocks)
            del self._rows[row.handle]
            self._residents.retire(row)
        return [(row.handle, "error") for row in broken]

    def _publish_output(self, launch: Launch) -> None:
        """Decoding rows fill a block now and then; until now its last token may have been on the device
        only."""
        kv_lens = launch.kv_lens[launch.drawing]
        for index in np.flatnonzero(kv_lens % self.config.block_size == 0).tolist():
            row = launch.rows[index]
            if row.lives:
                self._residents.publish(row, int(kv_lens[index]))

    def stats(self, step_s: float = 0.0, step_tokens: int = 0) -> EngineStats:
        """State now, and totals since the start; the figures of a step are the caller's to measure."""
        pool, totals = self._residents.pool, self._residents.totals
        return EngineStats(
            rows_running=len(self._batch.running()),
            rows_waiting=len(self._waiting),
            free_rows=len(self._batch.free_slots),
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
            steps_total=totals.steps,
        )

    def check(self) -> None:
        """Audit pool, batch and rows; AssertionError where anything disagrees."""
        self._residents.check()
        inside = [row for row in self._batch.rows if row is not None and row.lives]
        assert {row.handle: row for row in (*self._waiting, *inside)} == self._rows, (
            "rows by handle are wrong"
        )


def _logprobs(drawn: Drawn, dropped: list[int]) -> list[tuple[int, float, list[int], list[float]]]:
    """In the order of the draws, by their index once the dropped ones are gone."""
    return [
        (index - bisect_left(dropped, index), values.logprob, list(values.top_ids), list(values.top_logprobs))
        for index, values in sorted(drawn.logprobs.items())
        if index not in dropped
    ]
