"""Plans each step and applies its samples: the interface of the brain to the batch loop. It touches no
device, no clock and no socket.

    plan()    running rows first (decode, then prefill chunks), then admissions, within `max_step_tokens`
    masks()   what rows with a grammar or limits may sample in the newest plan
    settle()  the oldest outstanding plan: tokens to their rows, rows that are over out of the batch

With a pipeline depth of 1 a plan is made while the one before it still runs: a row's next token is then taken
from the device, and what was sampled after a row's end is dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from millstream_worker.engine.brain.batch.batch import Batch, blocks_for
from millstream_worker.engine.brain.batch.plan import Plan, Sampled, TokenMasks
from millstream_worker.engine.brain.batch.planner import Launch, build_plan
from millstream_worker.engine.brain.batch.rows import Row, RowState
from millstream_worker.engine.brain.batch.shared_prefixes import SharedPrefixes
from millstream_worker.engine.brain.cache.blocks import BlockPool
from millstream_worker.engine.brain.cache.host_pool import HostPool
from millstream_worker.engine.brain.cache.states import StatePool
from millstream_worker.engine.brain.images.feature_pool import FeaturePool
from millstream_worker.engine.brain.images.held_image import ImageKey
from millstream_worker.engine.brain.running.admit_rows import admit, displace, priority_to_admit
from millstream_worker.engine.brain.running.constrained_rows import ConstrainedRows
from millstream_worker.engine.brain.running.continue_rows import continue_rows
from millstream_worker.engine.brain.running.running_rows import RunningRows
from millstream_worker.engine.brain.running.step_time import StepTimeModel
from millstream_worker.engine.brain.scheduler_config import SchedulerConfig
from millstream_worker.engine.brain.speculation.speculation import Speculation
from millstream_worker.engine.brain.speculation.text_drafter import Drafter, TextGuesses
from millstream_worker.engine.brain.statistics import engine_stats
from millstream_worker.engine.brain.waiting.prefixes import Prefixes
from millstream_worker.engine.brain.waiting.row_factory import Rope, RowFactory
from millstream_worker.engine.brain.waiting.waiting_rows import WaitingRows
from millstream_worker.engine.grammars.matcher import Matcher
from millstream_worker.engine.protocol.outputs import EngineStats, Refused, Step
from millstream_worker.engine.protocol.request import EngineRequest


class Scheduler:
    """All times are seconds of one monotonic clock, passed in. `rope`: see RowFactory."""

    def __init__(
        self, config: SchedulerConfig, drafter: Drafter | None = None, rope: Rope | None = None
    ) -> None:
        self.config = config
        self.images: FeaturePool | None = None
        if config.feature_bytes:
            target_s = config.step_time_target_s
            self.images = FeaturePool(config.image_bytes, config.feature_bytes, target_s)
        self._row_factory = RowFactory(config, self.images, rope)
        host = HostPool(config.host_blocks, config.host_blocks_a_step) if config.host_blocks else None
        pool = BlockPool(config.blocks, host)
        self._batch = Batch(
            config.max_rows, blocks_for(self._row_factory.longest, config.block_size), config.block_size
        )
        self._waiting = WaitingRows(config.patience_s, Prefixes(pool), own_turn=2 * config.max_rows)
        self.states: StatePool | None = None
        if config.state_places:
            self.states = StatePool(config.state_places, config.block_size, ends=config.prefix_cache)
        self._running_rows = RunningRows(pool, self._batch, self._waiting, self.states, self.images)
        self._step_time = StepTimeModel(config.step_time_target_s, config.max_step_tokens)
        self._sharing = SharedPrefixes(self._batch, config.sharing)
        self._constrained = ConstrainedRows(self._batch, config.vocab_size)
        self._speculation: Speculation | None = None
        if config.speculate != "off":
            drafter = drafter or TextGuesses(config.max_rows)
            always = config.speculate == "always"
            self._speculation = Speculation(
                self._running_rows, config.max_rows, drafter, always=always, most_drafts=config.most_drafts
            )
        self._rows: dict[int, Row] = {}  # by handle; neither over nor aborted
        self._outstanding: deque[Launch] = deque()
        self._over: list[tuple[int, str]] = []
        self._planned = 0

    @property
    def idle(self) -> bool:
        """True if there is nothing to plan, nothing in flight and nothing to report."""
        return not (self._waiting or self._batch.occupied or self._outstanding or self._over)

    @property
    def interactive(self) -> bool:
        """True if an interactive row is in the batch, or waits."""
        batch = self._batch
        runs = bool((batch.interactive & (batch.decoding | batch.prefilling)).any())
        return runs or self._waiting.interactive

    def image_key(self, salt: str, digest: bytes) -> ImageKey:
        """Returns the name of an image among the prompts that may share it."""
        return salt if self.config.salted else "", digest

    def refuse(self, request: EngineRequest) -> Refused | None:
        """Returns the reason why the request can never run; None if it can."""
        return self._row_factory.refuse(request)

    def add(
        self, request: EngineRequest, now: float, matchers: Mapping[int, Matcher] | None = None
    ) -> Refused | None:
        """Queue every choice that is not done, with its matcher if the request has a grammar; refuse a
        request that can never run.
        """
        refusal = self.refuse(request)
        if refusal is not None:
            return refusal
        for row in self._row_factory.rows(request, matchers):
            assert row.handle not in self._rows, f"handle {row.handle} is taken"
            reason = row.finish_reason()  # an end that an earlier attempt did not report
            if reason is not None:
                self._over.append((row.handle, reason))
            else:
                self._rows[row.handle] = row
                if self.states is not None:
                    self.states.row_added(row)
                self._waiting.add(row, now)
        return None

    def take_finished(self) -> list[tuple[int, str]]:
        """Returns (handle, reason) of choices that were at their end when added. The next step reports those
        not taken.
        """
        over, self._over = self._over, []
        return over

    def abort(self, handles: Iterable[int]) -> None:
        """Stop these rows without further reports; unknown handles are ignored."""
        gone = set(handles)
        self._over = [(handle, reason) for handle, reason in self._over if handle not in gone]
        for handle in gone & self._rows.keys():
            row = self._rows[handle]
            self._drop(row)
            if row.state is RowState.WAITING:
                self._waiting.remove(row)
                row.move(RowState.ENDED)
            else:
                self._running_rows.abort(row)

    def plan(self, now: float) -> Plan | None:
        """Returns the next step, which the caller must launch. None: nothing can be computed before the
        outstanding plan is settled or, without one, before a request is added.
        """
        assert len(self._outstanding) <= self.config.pipeline_depth, "settle the oldest plan first"
        if self._outstanding and self._awaits_samples():
            return None
        if self.states is not None:
            self.states.begin_plan()
        if self.images is not None:
            self.images.begin_plan(waited_for=self._waited_for())
        if (host := self._running_rows.pool.host) is not None:
            host.weigh(self.config.host_block_s, self._step_time.token_s * self.config.block_size)
        displace(self._running_rows, now)
        selection = continue_rows(
            self._running_rows,
            self.config.max_step_tokens,
            self._prompt_tokens(),
            priority_to_admit(self._running_rows, now),
            now,
        )
        admit(self._running_rows, selection, now)
        if not selection:
            return None
        if self._speculation is not None and not self._outstanding:
            self._speculation.draft(selection)
        plan, launch = build_plan(self._planned, self._batch, selection, self._sharing)
        host = self._running_rows.pool.host
        if host is not None:
            swap_out, swap_in = host.take_copies()
            plan = replace(plan, swap_out=swap_out, swap_in=swap_in)
        if self.states is not None:
            loads, saves = (np.array(pairs, np.int32).reshape(-1, 2) for pairs in self.states.take_copies())
            plan = replace(plan, state_loads=loads, state_saves=saves)
        self._batch.launch(launch.slots, launch.kv_lens, plan.decodes)
        self._outstanding.append(launch)
        if self.images is not None:
            self.images.launched(selection.encodes)
        self._step_time.planned(plan.token_count - plan.decodes, now)
        self._planned += 1
        return plan

    def _awaits_samples(self) -> bool:
        """True if the next step depends on the samples of the newest one: rows have draft tokens in it, or
        will have some.
        """
        if self._speculation is None:
            return False
        return self._outstanding[-1].follows is not None or self._speculation.wants()

    @property
    def constrained(self) -> bool:
        """True if the newest plan samples under masks, which depend on the plans before it."""
        return self._constrained.sampled_in(self._outstanding[-1])

    def masks(self) -> TokenMasks | None:
        """Returns the tokens that the newest plan may sample, once those before it are settled; None: any."""
        if not self.constrained:
            return None
        launch = self._outstanding[-1]
        masks, refused = self._constrained.masks(launch)
        if launch.follows is not None:
            self._outstanding[-1] = replace(launch, follows=replace(launch.follows, refused=refused))
        self._running_rows.totals.masked += len(masks.bits)
        return masks

    def _prompt_tokens(self) -> int:
        """Returns the most prompt tokens of the next step."""
        batch, config = self._batch, self.config
        if not config.step_time_target_s or not (self._waiting or batch.prefilling.any()):
            return config.max_step_tokens
        return self._step_time.prompt_tokens() if self._waited_for() else config.max_step_tokens

    def _waited_for(self) -> bool:
        """True if rows decode whose tokens somebody waits for."""
        batch = self._batch
        rows = batch.decoding if self.config.step_time_for_all else batch.decoding & batch.interactive
        return bool(rows.any())

    def settle(self, sampled: Sampled, now: float) -> Step:
        """Apply the samples of the oldest outstanding plan."""
        launch = launched = self._outstanding.popleft()
        step_s = self._step_time.settled(now, sampled.encode_s)
        if self.images is not None:
            self.images.settled(step_s, sampled.encode_s)
        if self._speculation is not None:
            launch, sampled = self._speculation.verify(launch, sampled)
        admitted = [(row.origin.request.handle, cached) for row, cached in launch.admitted if row.lives]
        self._batch.settle(launch.slots, launch.kv_lens)
        self._batch.append(launch.sample_slots, launch.sample_lens, sampled.tokens)
        finished = self.take_finished() + self._end_non_finite(launch, sampled)
        tokens: list[int] = sampled.tokens.tolist()
        dropped, ended = self._append(launch.rows, tokens)
        self._publish_output(launch)
        if self._speculation is not None:
            self._speculation.learn(launch, step_s, ended)
        forced = self._constrained.append_forced(launch, ended)
        for row, reason in ended:
            self._drop(row)
            self._running_rows.retire(row)
            finished.append((row.handle, reason))
        self._running_rows.let_go(now)
        handles = [row.handle for row in launch.rows]
        for index in reversed(dropped):
            del handles[index], tokens[index]
        drafts = [] if self._speculation is None else self._speculation.count(launched, launch, handles)
        for row, more in forced:
            handles += [row.handle] * len(more)
            tokens += more
            self._running_rows.totals.forced += len(more)
        self._running_rows.totals.output += len(tokens)
        stats = engine_stats(self._running_rows, step_s, launch.tokens)
        logprobs = sampled.logprobs_without(dropped)
        return Step(handles, tokens, finished, admitted, logprobs, stats, drafts)

    def _append(self, rows: list[Row], tokens: list[int]) -> tuple[list[int], list[tuple[Row, str]]]:
        """Append each row's token; returns the indices of samples to drop, and rows that end, with why."""
        dropped: list[int] = []
        ended: dict[Row, str] = {}
        for index, (row, token) in enumerate(zip(rows, tokens, strict=True)):
            # aborted, non-finite, or ended one token before
            if row.state is RowState.ENDING or row in ended:
                dropped.append(index)
                continue
            if row.matcher is not None:
                if (reason := row.matcher.failure) is not None:
                    dropped.append(index)
                    ended[row] = reason
                    continue
                row.matcher.consume([token])
            row.output.append(token)
            if row.matcher is not None or token in row.end_ids or len(row.output) >= row.max_output:
                reason = row.finish_reason()
                if reason is not None:
                    ended[row] = reason
        return dropped, list(ended.items())

    def _end_non_finite(self, launch: Launch, sampled: Sampled) -> list[tuple[int, str]]:
        """End rows whose logits were not finite, and remove what they have shared, perhaps the cause."""
        non_finite = [row for row in (launch.rows[index] for index in sampled.non_finite) if row.lives]
        for row in non_finite:
            self._running_rows.pool.forget(row.blocks)
            if self.states is not None:
                self.states.forget(row.chain)
            self._drop(row)
            self._running_rows.retire(row)
        return [(row.handle, "error") for row in non_finite]

    def _drop(self, row: Row) -> None:
        """The row is over, or aborted."""
        del self._rows[row.handle]
        if self.states is not None:
            self.states.row_over(row)

    def _publish_output(self, launch: Launch) -> None:
        """Publish blocks that decoding rows have filled; their last token may have been the device's only."""
        full = launch.sample_lens % np.int32(self.config.block_size) == 0
        for index in full.nonzero()[0].tolist():
            row, length = launch.rows[index], int(launch.sample_lens[index])
            if row.lives and length < row.known:  # else it has ended before
                self._running_rows.publish(row, length)

    def stats(self) -> EngineStats:
        """Returns the current state, and totals since the start."""
        return engine_stats(self._running_rows)

    def check(self) -> None:
        """Audits pool, batch and rows. Raises AssertionError on any difference."""
        self._running_rows.check()
        inside = [row for row in self._batch.rows if row is not None and row.lives]
        assert {row.handle: row for row in (*self._waiting, *inside)} == self._rows, (
            "rows by handle are wrong"
        )
        if self.states is not None:
            taken = [row for row in self._batch.rows if row is not None]
            self.states.check(self._rows.values(), taken, self._batch.scheduled.tolist())
