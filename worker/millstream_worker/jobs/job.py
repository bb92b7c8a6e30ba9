"""One live job, with everything that an engine or a server may forget: a restarted engine gets its rows back
from here, a server that lost the tail of a token log gets it written again. It knows no Redis and no engine
process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from millstream.wire.keys import Lane, ShardKeys
from millstream.wire.messages.job_messages import ErrorInfo, Request, ResultCache, State
from millstream.wire.messages.record import ERRORS
from millstream.wire.messages.script_replies import Claim, LaneEntry
from millstream.wire.versions import FIRST_VERSION
from millstream_worker.jobs import encoding
from millstream_worker.jobs.job_phase import JobPhase
from millstream_worker.jobs.job_records import (
    UNDECIDED,
    JobAttempt,
    JobEnd,
    JobInput,
    JobOutputs,
    JobTimes,
    TokenLog,
)
from millstream_worker.jobs.output import ID_BYTES, ChoiceOutput


@dataclass(slots=True, eq=False)
class Job:
    shard: ShardKeys
    entry: LaneEntry
    attempt: JobAttempt
    input: JobInput
    times: JobTimes
    outputs: JobOutputs = field(default_factory=JobOutputs)
    log: TokenLog = field(default_factory=TokenLog)
    end: JobEnd = UNDECIDED
    phase: JobPhase = JobPhase.UNREAD

    @property
    def id(self) -> str:
        return self.entry.job_id

    @property
    def lane(self) -> Lane:
        return Lane(self.entry.lane)

    @property
    def request(self) -> Request:
        return self.input.request

    @property
    def rows(self) -> list[ChoiceOutput]:
        return self.outputs.rows

    def claim(self, owner: str) -> Claim:
        return self.entry.claim(owner, self.attempt.number)

    @property
    def seed(self) -> int:
        given = self.request.sampling.seed
        return self.attempt.seed if given is None else given

    @property
    def result_bytes(self) -> int:
        """Returns the approximate size of its result so far."""
        return sum(row.size for row in self.rows) + ID_BYTES * len(self.input.shown_prompt or ())

    @property
    def no_cache(self) -> bool:
        """True if it has to be computed itself."""
        return self.attempt.alone or self.request.cache is not ResultCache.USE

    def move(self, to: JobPhase) -> None:
        self.phase = self.phase.move(to)

    def set_read(self) -> None:
        """Its rows are made, its images are to be prepared, or it has ended."""
        if self.phase is JobPhase.ENDING:
            self.move(JobPhase.ENDED)
        elif self.input.images.files and not self.input.images.spans:
            self.move(JobPhase.PREPARING)
        elif self.input.cache_key and not self.no_cache:
            self.move(JobPhase.LOOKING_UP)
        else:
            self.move(JobPhase.READY)

    def set_compiled(self, now_ms: int) -> None:
        self.move(JobPhase.QUEUED)
        self.times.set_once("compiled_ms", now_ms)

    def admit(self, cached_tokens: int, begun_ms: int) -> bool:
        """It is in the batch, since the step that began at `begun_ms`. False if it was admitted before, in an
        engine that died.
        """
        self.move(JobPhase.RUNNING)
        if self.outputs.cached_tokens is not None:
            return False
        self.outputs.cached_tokens = cached_tokens
        self.times.set_once("admitted_ms", begun_ms)
        return True

    def conclude(self, state: State, error: ErrorInfo | None = None, letter: str | None = None) -> None:
        """Decide how it ends. The first decision stands."""
        assert state.terminal, state
        if not self.phase.has_ended:
            self.move(JobPhase.ENDING if self.phase is JobPhase.READING else JobPhase.ENDED)
            self.end = JobEnd(state, error or ERRORS.get(state), letter)

    def take_delta(self) -> None:
        self.log.take_delta(self.rows)

    def result(self, facts: Mapping[str, str], now_ms: int) -> bytes:
        """Returns the stored result; call `take_delta` before. `facts`: of the ServedModel."""
        self.times.set("finished_ms", now_ms)
        return encoding.result(
            state=self.end.state,
            choices=self.outputs.choices(),
            usage=self.outputs.usage(len(self.input.prompt), self.input.images.tokens),
            error=self.end.error,
            timing=self.times.timing,
            **facts,
            cached=self.outputs.cached,
            attempts=self.attempt.number,
            seed=self.seed if self.rows else None,  # unread, its own is not known
            metadata=self.request.metadata,
            sampling=self.input.defaulted,
            prompt_token_ids=self.input.shown_prompt,
            version=max(FIRST_VERSION, self.entry.version),
        )
