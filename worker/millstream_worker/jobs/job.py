"""One live job, with everything that an engine or a server may forget: a restarted engine gets its rows back
from here, a server that lost the tail of a token log gets it written again. It knows no Redis and no engine
process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from millstream.wire.keys import Lane, ShardKeys
from millstream.wire.messages import codec
from millstream.wire.messages.choices import Choice
from millstream.wire.messages.job_messages import ErrorInfo, Request, ResultCache, State, Timing
from millstream.wire.messages.script_replies import Claim, LaneEntry, StartReply
from millstream.wire.versions import FIRST_VERSION
from millstream_worker.engine.protocol.request import GrammarSpec, LimitSpec
from millstream_worker.jobs import encoding
from millstream_worker.jobs.encoding import Plain
from millstream_worker.jobs.job_phase import JobPhase
from millstream_worker.jobs.output import ID_BYTES, ChoiceOutput

_TIMES = tuple(Timing.model_fields)  # in the order in which they come
_ERRORS = {
    State.CANCELLED: ErrorInfo(code="cancelled", message="it was cancelled before it was done"),
    State.EXPIRED: ErrorInfo(code="expired", message="its deadline passed before it was done"),
}
MOST_REFUSALS = 8  # of one job's writes in a row, after which its keys count as damaged
ENTRY_LOST = ErrorInfo(
    code="entry_lost",
    message="the job's entry was deleted from its lane (XDEL, XTRIM or XADD MAXLEN) before it was done; "
    "submit the request again under another id",
)


@dataclass(frozen=True, slots=True)
class AttemptLimits:
    """`max_died` deaths of engines and workers make a job a suspect, which runs isolated; `max_died_alone`
    deaths in isolation make it a dead letter. Other deaths never do.
    """

    max_attempts: int
    max_died: int
    max_died_alone: int


@dataclass(slots=True, eq=False)
class Job:
    # from the lane and from `start`
    shard: ShardKeys
    entry: LaneEntry
    request: Request
    attempt: int
    died: int  # engines and workers that died with it before this worker had it
    timing: Timing
    died_alone: int = 0  # those of them in isolation
    sampled_seed: int = 0  # used where the request has none
    put_off: StartReply | None = None  # until it is read
    unread_bytes: int = 0  # of its message and log, where these are long
    earlier: tuple[Choice, ...] = ()  # output of earlier attempts, if it ends unread
    # its input
    prompt: tuple[int, ...] = ()
    prediction: tuple[int, ...] = ()
    max_tokens: int = 0
    defaulted: dict[str, Any] = field(
        default_factory=dict
    )  # sampling parameters that the model's defaults set
    end_ids: tuple[int, ...] = ()
    grammar: GrammarSpec | None = None
    limits: LimitSpec | None = None
    cache_key: bytes = b""  # equal for jobs that have one answer; empty: its answer is its own
    cached: bool = False  # its answer is that of an equal job
    rows: list[ChoiceOutput] = field(default_factory=list)
    # the engine's side
    phase: JobPhase = JobPhase.UNREAD
    handle: int = 0  # of its first row in the engine that runs now
    alone: bool = False  # suspect of having killed an engine: runs in a batch of its own
    deaths: int = 0  # of engines here that had it
    deaths_alone: int = 0
    refusals: int = 0  # writes in a row that the server can never accept
    cached_tokens: int | None = None  # found when it entered the batch of an engine here; None: it never did
    draft_tokens: int = 0  # verified here
    accepted_draft_tokens: int = 0
    # the log: body i has sequence number i + 1
    written: list[bytes] = field(default_factory=list)
    acknowledged: int = 0
    next_flush: float = 0.0  # monotonic seconds
    not_before: float = 0.0  # the same: the server had trouble with its last write
    first_token_out: bool = False  # its time is fixed, by this attempt or an earlier one
    # its end
    state: State = State.RUNNING
    error: ErrorInfo | None = None
    letter: str | None = None  # dead letter: the reason

    def __post_init__(self) -> None:
        self.first_token_out = self.timing.first_token_ms is not None

    @property
    def id(self) -> str:
        return self.entry.job_id

    @property
    def lane(self) -> Lane:
        return Lane(self.entry.lane)

    def claim(self, owner: str) -> Claim:
        return self.entry.claim(owner, self.attempt)

    @property
    def losses(self) -> int:
        return self.died + self.deaths

    @property
    def losses_alone(self) -> int:
        return self.died_alone + self.deaths_alone

    @property
    def result_bytes(self) -> int:
        """Returns the approximate size of its result so far."""
        return sum(row.size for row in self.rows) + ID_BYTES * len(self.shown_prompt or ())

    @property
    def shown_prompt(self) -> tuple[int, ...] | None:
        """Returns the prompt's ids, if its result has them. A job that ends unread has none."""
        return self.prompt or None if self.request.return_token_ids else None

    @property
    def output_tokens(self) -> int:
        return sum(len(row.ids) for row in self.rows)

    @property
    def seed(self) -> int:
        given = self.request.sampling.seed
        return self.sampled_seed if given is None else given

    @property
    def unlogged_tokens(self) -> int:
        return sum(len(row.ids) - row.logged for row in self.rows)

    @property
    def streamed(self) -> bool:
        return self.request.stream

    @property
    def no_cache(self) -> bool:
        """True if it has to be computed itself."""
        return self.alone or self.request.cache is not ResultCache.USE

    def move(self, to: JobPhase) -> None:
        self.phase = self.phase.move(to)

    def set_read(self) -> None:
        """Its rows are made, or it has ended."""
        if self.phase is JobPhase.ENDING:
            self.move(JobPhase.ENDED)
        elif self.cache_key and not self.no_cache:
            self.move(JobPhase.LOOKING_UP)
        else:
            self.move(JobPhase.READY)

    def set_compiled(self, now_ms: int) -> None:
        self.move(JobPhase.QUEUED)
        if self.timing.compiled_ms is None:  # else by an earlier attempt
            self._time("compiled_ms", now_ms)

    def admit(self, cached_tokens: int, begun_ms: int) -> bool:
        """It is in the batch, since the step that began at `begun_ms`. False if it was admitted before, in an
        engine that died.
        """
        self.move(JobPhase.RUNNING)
        if self.cached_tokens is not None:
            return False
        self.cached_tokens = cached_tokens
        if self.timing.admitted_ms is None:  # else by an earlier attempt
            self._time("admitted_ms", begun_ms)
        return True

    def end(self, state: State, error: ErrorInfo | None = None, letter: str | None = None) -> None:
        """Decide how it ends. The first decision stands."""
        assert state.terminal, state
        if not self.phase.has_ended:
            self.move(JobPhase.ENDING if self.phase is JobPhase.READING else JobPhase.ENDED)
            self.state, self.letter = state, letter
            self.error = error or _ERRORS.get(state)

    def take_delta(self) -> bool:
        """Put new output into the log's next body, or several if it is much. False if there is none."""
        before = len(self.written)
        while parts := [part for row in self.rows if (part := row.take()) is not None]:
            self.written.append(encoding.delta(parts))
        return len(self.written) > before

    def merge_open(self) -> None:
        """Merge all unacknowledged bodies into one. Only if it is certain that the log has none of them."""
        open_bodies = self.written[self.acknowledged :]
        if len(open_bodies) > 1:
            parts = [part for body in open_bodies for part in codec.unpack(body)["choices"]]
            self.written[self.acknowledged :] = [codec.pack({"choices": parts})]

    def result(self, facts: Mapping[str, str], now_ms: int) -> bytes:
        """Returns the stored result; call `take_delta` before. `facts`: of the ServedModel."""
        choices = [row.choice() for row in self.rows] or [plain(choice) for choice in self.earlier]
        self._time("finished_ms", now_ms)
        return encoding.result(
            state=self.state,
            choices=choices,
            usage=encoding.usage(
                prompt_tokens=len(self.prompt),
                cached_tokens=self.cached_tokens or 0,
                output_tokens=self._logged_tokens,
                draft_tokens=self.draft_tokens,
                accepted_draft_tokens=self.accepted_draft_tokens,
            ),
            error=self.error,
            timing=self.timing,
            facts=facts,
            cached=self.cached,
            attempts=self.attempt,
            seed=self.seed if self.rows else None,  # unread, its own is not known
            metadata=self.request.metadata,
            sampling=self.defaulted,
            prompt_token_ids=self.shown_prompt,
            version=max(FIRST_VERSION, self.entry.version),
        )

    @property
    def _logged_tokens(self) -> int:
        return sum(row.logged for row in self.rows) + sum(len(choice.token_ids) for choice in self.earlier)

    def send_first_token(self, now_ms: int) -> None:
        """It is sent now; if that fails it is sent again, with the time of the last try."""
        if not self.first_token_out:
            self._time("first_token_ms", now_ms)

    def confirm_first_token(self) -> bool:
        """It was sent. False if it was confirmed before, or there is none."""
        if self.first_token_out or self.timing.first_token_ms is None:
            return False
        self.first_token_out = True
        return True

    def set_last_token(self, now_ms: int) -> None:
        self._time("last_token_ms", now_ms)

    def _time(self, name: str, at_ms: int) -> None:
        """Never before an earlier time of the job: the server's clock is known here to some milliseconds
        only.
        """
        earlier = (getattr(self.timing, other) or 0 for other in _TIMES[: _TIMES.index(name)])
        self.timing = self.timing.model_copy(update={name: max(at_ms, *earlier)})


def plain(choice: Choice) -> Plain:
    logprobs = [codec.encode(logprob) for logprob in choice.logprobs or ()] or None
    return encoding.choice(
        choice.index,
        choice.text,
        choice.token_ids,
        choice.finish_reason,
        logprobs,
        choice.complete,
        choice.reasoning_content,
        [one.model_dump(exclude_defaults=True) for one in choice.tool_calls],
        choice.schema_error,
    )
