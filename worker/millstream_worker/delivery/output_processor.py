"""Applies the engine's steps to the jobs: tokens to choices, finish reasons to ends. Runs once per frame,
without I/O; detokenizes only choices that have stop strings.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from millstream.wire.messages.choices import FinishReason
from millstream.wire.messages.job_messages import ErrorInfo, State
from millstream.wire.timing import ServerClock
from millstream_worker.engine.protocol.outputs import Compiled, Refused, Step
from millstream_worker.jobs import encoding
from millstream_worker.jobs.engine_queue import EngineQueue
from millstream_worker.jobs.job import Job
from millstream_worker.jobs.job_phase import JobPhase
from millstream_worker.jobs.net import Net
from millstream_worker.jobs.output import ChoiceOutput
from millstream_worker.jobs.served_model import ModelSlot
from millstream_worker.jobs.table import JobTable

FLUSH_STEPS = 16  # this many tokens of a row are flushed at once

_REASONS: dict[str, FinishReason] = {"stop": "stop", "length": "length", "complete": "stop"}
_FAILURES = {  # by the engine's reason: the error's code, and what it says after so many tokens
    "error": (
        "model_error",
        "the model's logits were not finite after {} output tokens; its weights may be damaged or its dtype "
        "too narrow: try float32 or bfloat16",
    ),
    "grammar_limit": (
        "grammar_limit",
        "the response_format became too large to follow after {} output tokens; simplify it: fewer "
        "alternatives, and smaller bounds on repetitions and lengths",
    ),
    "grammar_stuck": (
        "grammar_stuck",
        "no token of the model fits the response_format and the limits of tokens after {} output tokens; "
        "allow more there",
    ),
    "limits_stuck": (
        "limits_stuck",
        "allowed_token_ids, bad_words and min_tokens leave no token after {} output tokens; allow more",
    ),
}


@dataclass(slots=True, eq=False)
class OutputProcessor:
    table: JobTable
    queue: EngineQueue
    clock: ServerClock
    net: Net
    model: ModelSlot
    _: KW_ONLY
    max_result_bytes: int
    _steps: int = 0

    def step(self, step: Step) -> None:
        now_ms = self.clock.now_ms()
        begun_ms = now_ms - round(step.stats.step_s * 1000)  # rows are admitted when it begins
        for handle, cached_tokens in step.admitted:
            if handle in self.queue.rows:
                self._admit(self.queue.rows[handle][0], cached_tokens, begun_ms)
        if step.logprobs:
            self._take_logprobs(step)
        watched = self._take_tokens(step, now_ms)
        for leader in self.queue.followers.leaders:
            watched[:0] = self._share(leader, now_ms)  # first: the end of a leader sets its followers free
        for handle, drafted, accepted in step.drafts:
            if handle in self.queue.rows:
                job, _ = self.queue.rows[handle]
                job.outputs.draft_tokens += drafted
                job.outputs.accepted_draft_tokens += accepted
        for handle in step.held:
            if handle in self.queue.rows:
                self._hold_end_token(handle)
        ended, misfits = [], dict(step.misfits)
        for handle, reason in step.finished:
            if handle in self.queue.rows and reason in _FAILURES:
                self._fail(handle, reason)
            elif handle in self.queue.rows:
                ended += self._end_row(handle, reason, misfits.get(handle, ""))
        for job, row in watched:
            if row.feed():
                if self.queue.computes_row(job, row):
                    self.queue.stop_row(job, row)
                ended.append(job)
        for job in ended:
            self._end_if_done(job, now_ms)
        self._steps += 1
        if self._steps % FLUSH_STEPS == 0:
            self.table.to_write.set()
            self._end_oversized()

    def _end_oversized(self) -> None:
        """Fail jobs whose result has grown beyond the bound; each keeps its text so far."""
        for job in self.table:
            size = job.result_bytes
            if size > self.max_result_bytes and not job.phase.has_ended:
                message = (
                    f"the result has grown to {size} bytes and may take {self.max_result_bytes}; ask for "
                    "fewer tokens, choices or top_logprobs, or raise the worker's MILLSTREAM_MAX_RESULT_BYTES"
                )
                error = ErrorInfo(code="result_too_large", message=message, field="sampling.max_tokens")
                self.table.conclude(job, State.FAILED, error)

    def refused(self, refused: Refused) -> None:
        """The engine can never run this job: it fails, and the submitter gets the reason."""
        job = self._job_of(refused.handle)
        if job is None:
            return
        error = ErrorInfo(code="bad_request", message=refused.message, field=refused.field)
        if refused.trace:
            error = self.net.unexpected(job, refused.message, refused.trace)
        self.table.conclude(job, State.FAILED, error)

    def compiled(self, compiled: Compiled) -> None:
        """Its grammar is there: the job waits for its place in the batch now."""
        self.net.metrics.grammar_wait.observe(compiled.waited_s)
        job = self._job_of(compiled.handle)
        if job is not None:
            job.set_compiled(self.clock.now_ms())

    def _job_of(self, handle: int) -> Job | None:
        """By its first choice's handle, which may have ended in an earlier attempt."""
        return next((job for job, _ in self.queue.rows.values() if job.outputs.handle == handle), None)

    def _admit(self, job: Job, cached_tokens: int, begun_ms: int) -> None:
        if job.phase is JobPhase.RUNNING:
            return
        queued = job.times.timing.admitted_ms is None
        if job.admit(cached_tokens, begun_ms):
            self.net.metrics.admitted(job.lane, job.times.timing, len(job.input.prompt), queued=queued)

    def _take_tokens(self, step: Step, now_ms: int) -> list[tuple[Job, ChoiceOutput]]:
        """The hot loop: every token passes here. Returns the rows that have stop strings."""
        rows = self.queue.rows
        watched = []
        for handle, token in zip(step.handles, step.tokens, strict=True):
            given = rows.get(handle)
            if given is None:  # stopped here while the engine was sampling
                continue
            row = given[1]
            row.ids.append(token)
            if row.watched:
                watched.append(given)
            if not row.begun:
                self._begin(given[0], row, now_ms)
        return watched

    def _share(self, leader: Job, now_ms: int) -> list[tuple[Job, ChoiceOutput]]:
        """Give a leader's tokens to its followers. Returns those of their rows that have stop strings."""
        watched = []
        for job in self.queue.followers.of(leader):
            if leader.phase is JobPhase.RUNNING:
                self._admit(job, len(job.input.prompt), now_ms)
            for row, its in zip(job.rows, leader.rows, strict=True):
                if row.reason is None:
                    row.follow(its)
                    if row.watched:
                        watched.append((job, row))
                    if row.ids and not row.begun:
                        self._begin(job, row, now_ms)
        return watched

    def _begin(self, job: Job, row: ChoiceOutput, now_ms: int) -> None:
        row.begun = True
        if job.request.stream:  # its first token counts from when it is sent, at once
            job.log.next_flush = 0.0
            self.table.to_write.set()
            return
        job.times.send_first_token(now_ms)
        if job.times.confirm_first_token():
            self.net.metrics.first_token(job.lane, job.times.timing)

    def _take_logprobs(self, step: Step) -> None:
        for place, logprob, top_ids, top_logprobs in step.logprobs:
            given = self.queue.rows.get(step.handles[place])
            if given is None or given[1].logprobs is None:
                continue
            drawn = given[1].told(step.tokens[place], logprob)
            top = [given[1].told(*one) for one in zip(top_ids, top_logprobs, strict=True)]
            given[1].add_logprob(encoding.token_logprob(drawn, top))

    def _hold_end_token(self, handle: int) -> None:
        """The last token of a choice, which ends soon, is no text; nor is it in those of its followers."""
        leader, held = self.queue.rows[handle]
        for job in (leader, *self.queue.followers.of(leader)):
            job.rows[held.index].end_token = True

    def _end_row(self, handle: int, reason: str, misfit: str) -> list[Job]:
        """Returns the jobs whose choice it was, the leader last. `misfit`: why its calls do not fit."""
        leader, ended = self.queue.end_row(handle)
        jobs = [*self.queue.followers.of(leader), leader]
        ends = self.model.get().info.eos_ids + (leader.input.grammar.ends if leader.input.grammar else ())
        for row in (job.rows[ended.index] for job in jobs):
            row.reason, row.end_token = _REASONS[reason], reason == "stop"
            whole = row.end_token and row.ids[-1] in ends
            row.fits, row.schema_error = whole or reason == "complete", misfit
        return jobs

    def _fail(self, handle: int, reason: str) -> None:
        """The row cannot go on: its job fails with the text so far; others continue."""
        job, row = self.queue.rows[handle]
        code, message = _FAILURES[reason]
        error = ErrorInfo(code=code, message=message.format(len(row.ids)))
        self.table.conclude(job, State.FAILED, error)

    def _end_if_done(self, job: Job, now_ms: int) -> None:
        if not job.phase.has_ended and all(row.reason is not None for row in job.rows):
            job.times.set("last_token_ms", now_ms)
            if job.outputs.cached:
                self.net.metrics.cache_followers.inc()
            self.table.conclude(job, State.COMPLETED)
