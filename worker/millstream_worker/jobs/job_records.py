"""The small records that make up a Job."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from millstream.wire.messages import codec
from millstream.wire.messages.choices import Choice
from millstream.wire.messages.job_messages import ErrorInfo, Request, State, Timing, Usage
from millstream.wire.messages.script_replies import StartReply
from millstream_worker.engine.protocol.request import GrammarSpec, ImageSpan, LimitSpec
from millstream_worker.jobs import encoding
from millstream_worker.jobs.encoding import Plain
from millstream_worker.jobs.output import ChoiceOutput

MOST_REFUSALS = 8  # of one job's writes in a row, after which its keys count as damaged
_TIMES = tuple(Timing.model_fields)  # in the order in which they come
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
class JobAttempt:
    """An attempt at a job, and the engines and workers that it has cost."""

    number: int
    died: int  # engines and workers that died with it before this worker had it
    died_alone: int = 0  # those of them in isolation
    seed: int = 0  # sampled, for a request that has none
    alone: bool = False  # suspect of having killed an engine: runs in a batch of its own
    deaths: int = 0  # of engines here that had it
    deaths_alone: int = 0

    @property
    def losses(self) -> int:
        return self.died + self.deaths

    @property
    def losses_alone(self) -> int:
        return self.died_alone + self.deaths_alone


@dataclass(frozen=True, slots=True)
class JobEnd:
    state: State
    error: ErrorInfo | None = None
    letter: str | None = None  # dead letter: the reason


UNDECIDED = JobEnd(State.RUNNING)


@dataclass(slots=True, eq=False)
class JobImages:
    """`digests` and `fields`: of each image in the messages, in order; one may be there twice. `files`: their
    bytes by digest, until they are prepared. `spans`: their places in the prompt, once it is known.
    """

    digests: tuple[bytes, ...] = ()
    fields: tuple[str, ...] = ()
    files: dict[bytes, bytes] = field(default_factory=dict, repr=False)
    spans: tuple[ImageSpan, ...] = ()

    @property
    def tokens(self) -> int:
        """Counts the tokens of the prompt that stand for features."""
        return sum(count for span in self.spans for _, count in span.runs)

    @property
    def file_bytes(self) -> int:
        return sum(map(len, self.files.values()))

    def take(self, files: Sequence[bytes]) -> None:
        """The files of a message that was fetched again."""
        self.files = {digest_of(data): data for data in files}


@dataclass(slots=True, eq=False)
class JobInput:
    """A job's request, and what the engine is given of it."""

    request: Request
    put_off: StartReply | None = None  # until it is read
    unread_bytes: int = 0  # of its message and log, where these are long
    image_bytes: int = 0  # of its message: of the images in it
    images: JobImages = field(default_factory=JobImages)
    prompt: tuple[int, ...] = ()
    prediction: tuple[int, ...] = ()
    max_tokens: int = 0
    defaulted: dict[str, Any] = field(default_factory=dict)  # sampling parameters set by the model's defaults
    end_ids: tuple[int, ...] = ()
    grammar: GrammarSpec | None = None
    limits: LimitSpec | None = None
    cache_key: bytes = b""  # equal for jobs that have one answer; empty: its answer is its own

    @property
    def shown_prompt(self) -> tuple[int, ...] | None:
        """Returns the prompt's ids, if its result has them. A job that ends unread has none."""
        return self.prompt or None if self.request.return_token_ids else None


@dataclass(slots=True, eq=False)
class JobTimes:
    """The times of a job, over all attempts."""

    timing: Timing
    first_token_out: bool = False  # its time is fixed, by this attempt or an earlier one

    def __post_init__(self) -> None:
        self.first_token_out = self.timing.first_token_ms is not None

    def set(self, name: str, at_ms: int) -> None:
        """Sets a time, and never one before an earlier one of the job: the server's clock is known here to
        some milliseconds only.
        """
        earlier = (getattr(self.timing, other) or 0 for other in _TIMES[: _TIMES.index(name)])
        self.timing = self.timing.model_copy(update={name: max(at_ms, *earlier)})

    def set_once(self, name: str, at_ms: int) -> None:
        """Sets a time unless an earlier attempt has."""
        if getattr(self.timing, name) is None:
            self.set(name, at_ms)

    def send_first_token(self, now_ms: int) -> None:
        """It is sent now; if that fails it is sent again, with the time of the last try."""
        if not self.first_token_out:
            self.set("first_token_ms", now_ms)

    def confirm_first_token(self) -> bool:
        """It was sent. False if it was confirmed before, or there is none."""
        if self.first_token_out or self.timing.first_token_ms is None:
            return False
        self.first_token_out = True
        return True


@dataclass(slots=True, eq=False)
class TokenLog:
    """The token log of a job as it is written: body i has sequence number i + 1."""

    written: list[bytes] = field(default_factory=list)
    acknowledged: int = 0
    next_flush: float = 0.0  # monotonic seconds
    not_before: float = 0.0  # the same: the server had trouble with its last write
    refusals: int = 0  # writes in a row that the server can never accept

    @property
    def is_acknowledged(self) -> bool:
        return self.acknowledged == len(self.written)

    def take_delta(self, rows: Sequence[ChoiceOutput]) -> None:
        """Put new output into the next body, or several if it is much."""
        while parts := [part for row in rows if (part := row.take()) is not None]:
            self.written.append(encoding.delta(parts))

    def merge_open(self) -> None:
        """Merge all unacknowledged bodies into one. Only if it is certain that the log has none of them."""
        open_bodies = self.written[self.acknowledged :]
        if len(open_bodies) > 1:
            parts = [part for body in open_bodies for part in codec.unpack(body)["choices"]]
            self.written[self.acknowledged :] = [codec.pack({"choices": parts})]


@dataclass(slots=True, eq=False)
class JobOutputs:
    """The output of a job: its choices, and how they came about."""

    rows: list[ChoiceOutput] = field(default_factory=list)
    earlier: tuple[Choice, ...] = ()  # output of earlier attempts, if it ends unread
    handle: int = 0  # of its first row in the engine that runs now
    cached: bool = False  # its answer is that of an equal job
    cached_tokens: int | None = None  # found when it entered the batch of an engine here; None: it never did
    draft_tokens: int = 0  # verified here
    accepted_draft_tokens: int = 0

    @property
    def tokens(self) -> int:
        return sum(len(row.ids) for row in self.rows)

    @property
    def unlogged_tokens(self) -> int:
        return sum(len(row.ids) - row.logged for row in self.rows)

    def choices(self) -> list[Plain]:
        """Returns those of the result."""
        return [row.choice() for row in self.rows] or [_plain(choice) for choice in self.earlier]

    def usage(self, prompt_tokens: int, image_tokens: int = 0) -> Plain:
        earlier = sum(len(choice.token_ids) for choice in self.earlier)
        return encoding.part(
            Usage,
            prompt_tokens=prompt_tokens,
            cached_tokens=self.cached_tokens or 0,
            output_tokens=sum(row.logged for row in self.rows) + earlier,
            draft_tokens=self.draft_tokens,
            accepted_draft_tokens=self.accepted_draft_tokens,
            image_tokens=image_tokens,
        )


def digest_of(data: bytes) -> bytes:
    """Returns the digest of an image file: the same page saved anew is another image."""
    return hashlib.sha256(data).digest()


def _plain(choice: Choice) -> Plain:
    fields = {name: getattr(choice, name) for name in Choice.model_fields}
    logprobs = [codec.encode(logprob) for logprob in choice.logprobs or ()] or None
    calls = [one.model_dump(exclude_defaults=True) for one in choice.tool_calls]
    return encoding.part(Choice, **fields | {"logprobs": logprobs, "tool_calls": calls})
