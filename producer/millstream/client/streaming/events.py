"""The events of a stream, and their combined text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from millstream.errors import JobCancelled, JobError, JobExpired, JobFailed
from millstream.wire.messages.choices import ChoiceDelta, calls_of
from millstream.wire.messages.job_messages import ErrorInfo, Result, State
from millstream.wire.messages.tools import ToolCall


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """New tokens: one flush of a job, with the choices that grew. `stream(job_id, cursor)` continues after
    it.
    """

    cursor: str
    seq: int  # 1, 2, 3 … without gaps
    choices: tuple[ChoiceDelta, ...]

    @property
    def text(self) -> str:
        """The new text of the first choice; `choices` has them all."""
        return "".join(choice.text for choice in self.choices if choice.index == 0)

    @property
    def reasoning_content(self) -> str:
        """The same of the thought before the text."""
        return "".join(choice.reasoning_content for choice in self.choices if choice.index == 0)


@dataclass(frozen=True, slots=True)
class RewindEvent:
    """The server lost the entries after `seq`, or another model has begun the job anew (`seq` 0): discard the
    text of later events; it comes again.
    """

    text: ClassVar[str] = ""
    cursor: str
    seq: int


@dataclass(frozen=True, slots=True)
class EndEvent:
    """The last event: the job's terminal state, and the error if it failed."""

    text: ClassVar[str] = ""
    cursor: str
    job_id: str
    state: State
    error: ErrorInfo | None = None

    def raise_for_state(self) -> None:
        """Raise JobFailed, JobCancelled or JobExpired unless the job was completed."""
        if (error := error_of_end(self.job_id, self.state, self.error)) is not None:
            raise error


def error_of_end(
    job_id: str, state: State, error: ErrorInfo | None, result: Result | None = None
) -> JobError | None:
    """The error of a job that has ended, with its result; None if it was completed."""
    match state:
        case State.FAILED:
            told = error or ErrorInfo(code="unknown", message="the worker gave no reason")
            return JobFailed(job_id, told.code, told.message, result)
        case State.CANCELLED:
            return JobCancelled(job_id, result)
        case State.EXPIRED:
            return JobExpired(job_id, result)
        case _:
            return None


Event = TokenEvent | RewindEvent | EndEvent


class Transcript:
    """The text of a stream so far, rewinds included: feed it every event, from the start of the log."""

    __slots__ = ("_deltas",)

    def __init__(self) -> None:
        self._deltas: list[tuple[ChoiceDelta, ...]] = []

    def add(self, event: Event) -> None:
        if isinstance(event, TokenEvent):
            self._deltas.append(event.choices)
        elif isinstance(event, RewindEvent):
            del self._deltas[event.seq :]

    def text(self, choice: int = 0) -> str:
        return "".join(delta.text for choices in self._deltas for delta in choices if delta.index == choice)

    def tool_calls(self, choice: int = 0) -> tuple[ToolCall, ...]:
        """The calls of tools so far, the last of which may have a part of its arguments."""
        return calls_of([delta for choices in self._deltas for delta in choices if delta.index == choice])

    def token_ids(self, choice: int = 0) -> tuple[int, ...]:
        return tuple(
            token
            for choices in self._deltas
            for delta in choices
            if delta.index == choice
            for token in delta.token_ids
        )
