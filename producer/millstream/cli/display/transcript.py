"""A job's stream and its result on standard output: plain text for people, JSON lines for programs."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from millstream.cli.display.terminal import print_json, warn
from millstream.client.async_client import AsyncClient
from millstream.client.streaming.events import EndEvent, Event, RewindEvent, TokenEvent, Transcript
from millstream.wire.messages.choices import Choice, ChoiceDelta
from millstream.wire.messages.job_messages import Result, State

EMPTY = (
    "the model ended at once with no text; word it differently, or give --param min_tokens=20 "
    "(an instruct model expects a message: no --raw)"
)


THOUGHT = "the model was cut in its thought, before any answer: allow more tokens (--max-tokens)"
CUT = "the answer was cut before it was whole: allow more tokens (--max-tokens), or leave out --stop"


class Follower:
    """Prints a job's events as they arrive. `cursor` is the place to continue from after an interruption."""

    def __init__(self, job_id: str, cursor: str | None = None, *, as_json: bool = False) -> None:
        self.job_id = job_id
        self.cursor = cursor
        self._as_json = as_json
        self._transcript = Transcript()
        self._whole = cursor is None  # the text is seen from its start
        self._flaw = ""  # why a choice is not what its format or tools ask for
        self._thought = False  # there was one

    async def follow(self, client: AsyncClient) -> None:
        """Until the job ends. Raises JobFailed, JobCancelled, JobExpired, and what `stream` raises."""
        async for event in client.stream(self.job_id, self.cursor):
            self.cursor = event.cursor
            if self._as_json:
                print_json(_as_mapping(event))
            else:
                self._show(event)
            if isinstance(event, EndEvent):
                event.raise_for_state()

    def _show(self, event: Event) -> None:
        self._transcript.add(event)
        match event:
            case TokenEvent():
                self._show_thought(event.reasoning_content)
                _write(event.text)
                self._flaw = self._flaw or _flaw_of(event.choices)
            case RewindEvent():
                _write("\n")
                warn("the server has lost the latest tokens; the text is printed again from its start")
                _write(self._transcript.text())
                self._flaw = ""
            case EndEvent():
                _write("\n")
                if self._whole and event.state is State.COMPLETED and not self._transcript.text():
                    warn(THOUGHT if self._thought else EMPTY)
                elif self._flaw:
                    warn(self._flaw)

    def _show_thought(self, text: str) -> None:
        """For people only: it is not part of the answer, which a pipe takes."""
        self._thought |= bool(text)
        if text and sys.stderr.isatty():
            sys.stderr.write(text)
            sys.stderr.flush()


def print_result(job_id: str, result: Result, *, as_json: bool) -> None:
    """Print the text of the first choice, and the others below their numbers."""
    if as_json:
        print_json({"id": job_id} | result.model_dump(mode="json"))
        return
    for choice in result.choices:
        if len(result.choices) > 1:
            _write(f"--- choice {choice.index}\n")
        _write(f"{choice.text}\n")
    if not any(choice.text for choice in result.choices):
        warn(THOUGHT if any(choice.reasoning_content for choice in result.choices) else EMPTY)
    elif flaw := _flaw_of(result.choices):
        warn(flaw)


def _flaw_of(choices: Iterable[Choice | ChoiceDelta]) -> str:
    """Returns what to say of the first choice that is known not to be whole; empty without one."""
    flawed = next((choice for choice in choices if choice.complete is False), None)
    return "" if flawed is None else flawed.schema_error or CUT


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _as_mapping(event: Event) -> dict[str, Any]:
    match event:
        case TokenEvent():
            choices = [choice.model_dump(mode="json", exclude_none=True) for choice in event.choices]
            return {"cursor": event.cursor, "event": "tokens", "choices": choices}
        case RewindEvent():
            return {"cursor": event.cursor, "event": "rewind", "seq": event.seq}
        case EndEvent():
            error = event.error.model_dump(mode="json") if event.error else None
            return {"cursor": event.cursor, "event": "end", "state": event.state, "error": error}
