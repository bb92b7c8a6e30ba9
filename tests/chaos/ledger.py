"""What was submitted, what must come of it, and what everybody saw of it. Written by the load, the watcher
and the faults; read by the checks.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from chaos.calls import told_of
from millstream import (
    Conflict,
    Durability,
    InvalidRequest,
    MillstreamError,
    QueueMismatch,
    Result,
    State,
    Submitted,
    Transcript,
)
from millstream.wire.keys import job_id_of


class Accepted(StrEnum):
    UNKNOWN = "unknown"  # the answer to its submit never came
    YES = "yes"


@dataclass(frozen=True, slots=True)
class Order:
    """One job: the arguments of its submit, and what each choice must have: its text with its calls, as
    `calls` tells them, and whether it is whole (None without a grammar)."""

    own_id: str
    fields: Mapping[str, Any]
    texts: tuple[str, ...]
    complete: tuple[bool | None, ...] = ()  # not given: all None
    fails: frozenset[str] = frozenset()  # if any: the error codes that it must fail with

    @property
    def has_images(self) -> bool:
        return any(not isinstance(message["content"], str) for message in self.fields.get("messages", ()))


@dataclass(frozen=True, slots=True)
class Ended:
    """What one caller was told of a job's end."""

    state: State
    texts: tuple[str, ...] = ()
    code: str = ""
    tokens: int = 0  # in all choices
    counted: int = 0  # as the usage says
    complete: tuple[bool | None, ...] = ()
    cached: bool = False  # computed for an equal job
    message: str = ""  # of its error

    @classmethod
    def of(cls, result: Result) -> Ended:
        code, message = (result.error.code, result.error.message) if result.error else ("", "")
        texts = tuple(told_of(choice.text, choice.tool_calls) for choice in result.choices)
        tokens = sum(len(choice.token_ids) for choice in result.choices)
        complete = tuple(choice.complete for choice in result.choices)
        return cls(
            result.state, texts, code, tokens, result.usage.output_tokens, complete, result.cached, message
        )


@dataclass(slots=True, eq=False)
class Reading:
    """One subscriber, over all its connections. Left by its reader it has no end, and needs none."""

    kind: str
    transcript: Transcript = field(default_factory=Transcript)
    cursor: str | None = None
    rewinds: int = 0
    state: State | None = None  # as the end event said
    left: bool = False  # the reader wanted no more
    error: str = ""  # what ended it instead

    @property
    def over(self) -> bool:
        return self.state is not None or self.left or bool(self.error)


@dataclass(slots=True, eq=False)
class Entry:
    """A job's page of the ledger. Times are the wall clock's, as the server's are."""

    id: str
    order: Order
    accepted: Accepted = Accepted.UNKNOWN
    submits: int = 0
    first_submit_s: float = 0.0
    # what allows for another end than "completed, with its text"
    cancelled: bool = False  # somebody asked for it
    cancelled_at_once: bool = False  # it waited, and the answer said that it has ended
    cancel_requested_s: float | None = None  # a running job's cancellation was accepted
    deadline: bool = False
    wiped: bool = False  # the server forgot everything after it was submitted
    durable: bool = False  # acknowledged by as many servers as it takes to outlast a failover
    at_risk: bool = False  # acknowledged, perhaps by one server only, before that one was lost
    anew: bool = False  # another model may begin it anew: its streams rewind
    shaken: bool = False  # what was written of it may be undone, its end included: the same
    # what was seen
    readings: list[Reading] = field(default_factory=list)
    told: list[Ended] = field(default_factory=list)  # by `wait` and `result`
    ended_s: float | None = None  # its end was first seen
    wait_error: str = ""  # what ended a wait without a result
    waiting: int = 0  # callers that have not been told yet
    troubles: list[str] = field(default_factory=list)  # errors that no caller should get

    def answered(self, outcome: Submitted | MillstreamError) -> None:
        """By a submit. Most errors leave it open: the answer to an earlier try may have been lost."""
        if isinstance(outcome, Submitted):
            self.accepted = Accepted.YES
            self.durable |= outcome.durability is not Durability.NONE
            if outcome.id != self.id:
                self.troubles.append(f"submitted as {outcome.id}")
        elif isinstance(outcome, InvalidRequest | Conflict | QueueMismatch):
            self.troubles.append(f"a good request is refused: {outcome!r}")

    @property
    def excused(self) -> bool:
        """It may be missing."""
        return self.wiped or self.at_risk

    @property
    def allowed(self) -> set[State]:
        states = {State.FAILED if self.order.fails else State.COMPLETED}
        if self.cancelled:
            states.add(State.CANCELLED)
        if self.deadline:
            states.add(State.EXPIRED)
        return states


@dataclass(slots=True, eq=False)
class Strike:
    """One fault, from its first to its last moment; wall clock."""

    name: str
    began_s: float
    ended_s: float | None = None
    error: str = ""
    recovery_s: float | None = None  # to the next token, or the next end, that anybody saw

    def lasted(self, since_s: float, until_s: float) -> bool:
        """Whether it was at work in that time."""
        return self.began_s <= until_s and (self.ended_s or until_s) >= since_s


class Ledger:
    def __init__(self, shards: int) -> None:
        self.entries: dict[str, Entry] = {}  # by job id
        self.strikes: list[Strike] = []
        self.notes: list[tuple[str, str]] = []  # violations that no single job shows: kind, and what it is
        self._shards = shards
        self._recovering: list[Strike] = []

    def open(self, order: Order, **expected: Any) -> Entry:
        """A page for a new order, before it is submitted. `expected`: cancelled, deadline."""
        job_id = job_id_of(order.own_id, self._shards)
        assert job_id not in self.entries, f"{job_id} is ordered twice"
        entry = self.entries[job_id] = Entry(job_id, order, **expected)
        return entry

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries.values())

    def __len__(self) -> int:
        return len(self.entries)

    # --- what faults say

    def began(self, name: str) -> Strike:
        strike = Strike(name, time.time())
        self.strikes.append(strike)
        self._recovering.append(strike)
        return strike

    def wipe(self) -> None:
        """Call it when FLUSHALL has answered: nothing that was submitted before is certain to be there."""
        for entry in self.entries.values():
            if entry.submits:
                entry.wiped = True

    def risk(self, since_s: float) -> None:
        """Acknowledged writes from `since_s` on (wall clock) until now may be gone: a failover. Jobs that
        were submitted then may be missing, unless they were acknowledged as durable."""
        for entry in self.entries.values():
            if entry.submits and (entry.ended_s is None or entry.ended_s >= since_s):
                entry.shaken = True
                entry.at_risk |= entry.first_submit_s >= since_s and not entry.durable

    def begin_anew(self) -> None:
        """The queue's model is being replaced: what has not ended may begin anew."""
        for entry in self.entries.values():
            entry.anew |= entry.ended_s is None

    def note(self, violation: str, kind: str = "note") -> None:
        self.notes.append((kind, violation))

    def struck(self, name: str, since_s: float, until_s: float) -> bool:
        """Whether a fault whose name begins so was at work in that time."""
        return any(
            strike.name.startswith(name) and strike.lasted(since_s, until_s) for strike in self.strikes
        )

    # --- what the load sees

    def progressed(self) -> None:
        """A token or an end has reached somebody."""
        now = time.time()
        for strike in self._recovering:
            strike.recovery_s = now - strike.began_s
        self._recovering.clear()
