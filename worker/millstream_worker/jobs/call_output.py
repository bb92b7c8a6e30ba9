"""The calls of tools in one choice's text: taken out of it, and given out piece by piece."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from millstream.errors import ProtocolError
from millstream.wire.messages.choices import ChoiceDelta, FinishReason, ToolCallDelta
from millstream.wire.messages.tools import ToolCall
from millstream_worker.engine.grammars.calls.call_form import HERMES, CallForm
from millstream_worker.engine.grammars.calls.call_reader import CallReader
from millstream_worker.jobs import encoding
from millstream_worker.jobs.encoding import Plain


@dataclass(frozen=True, slots=True)
class ToolCallMode:
    """The way an answer calls tools: the form, and parameters by function, as JSON text. `reason`: why one
    ends that does; `free`: it may be any text, too; `formatted`: it is calls or of a format.
    """

    job_id: str
    form: CallForm
    functions: Mapping[str, str]
    reason: FinishReason
    free: bool = False
    formatted: bool = False


def call_id(job_id: str, choice: int, place: int) -> str:
    """Returns the id of a call, which is the same in every attempt."""
    return f"call_{hashlib.sha256(f'{job_id} {choice} {place}'.encode()).hexdigest()[:24]}"


class CallOutput:
    """`feed` the text in order, `finish` at its end. What was given out is never taken back."""

    def __init__(self, mode: ToolCallMode, index: int) -> None:
        self.mode = mode
        self._index = index  # of the choice
        self._reader = CallReader(mode.form, mode.functions, at_start=mode.formatted)
        self._given: list[int] = []  # arguments' characters in deltas, by call
        self._in_text = False  # as workers of version 0.2.0 leave calls, in Hermes' form

    @property
    def begun(self) -> bool:
        return self._reader.begun

    def resume(self, deltas: Sequence[ChoiceDelta], text: str) -> str:
        """Resume from what earlier attempts have given out. `text`: of all their tokens. Returns the content
        beyond theirs. Raises ProtocolError for pieces that no worker has written.
        """
        given = "".join(delta.text for delta in deltas)
        content = self._reader.feed(text)
        if not content.startswith(given) or self._is_foreign(text):
            self._reader = CallReader(HERMES, self.mode.functions)
            self._reader.feed(text)
            self._in_text = True
            return text[len(given) :]
        for piece in (piece for delta in deltas for piece in delta.tool_call_deltas):
            if piece.index > len(self._given):
                raise ProtocolError(f"the token log has a piece of call {piece.index} before the first of it")
            if piece.index == len(self._given):
                self._given.append(0)
            self._given[piece.index] += len(piece.arguments)
        return content[len(given) :]

    def _is_foreign(self, text: str) -> bool:
        """True if a worker of version 0.2.0 has begun calls in Hermes' form, and the model's is another."""
        begin = HERMES.begin
        return self.mode.form != HERMES and len(text) > 1 and text[: len(begin)] == begin[: len(text)]

    def feed(self, text: str) -> str:
        """Returns the content that became certain."""
        content = self._reader.feed(text)
        return text if self._in_text else content

    def finish(self, *, is_cut: bool) -> str:
        """Returns the content that was held."""
        content = self._reader.finish(is_cut=is_cut)
        return "" if self._in_text else content

    def marks(self) -> list[int]:
        """Returns how far the calls are read: the number of characters of the arguments of each."""
        return [call.size for call in self._reader.calls]

    def take(self, marks: Sequence[int]) -> list[Plain]:
        """Returns what is new up to these marks."""
        if self._in_text:
            return []
        pieces = []
        for place, (call, end) in enumerate(zip(self._reader.calls, marks, strict=False)):
            fields: Plain = {"index": place}
            if place == len(self._given):
                self._given.append(0)
                fields |= {"id": self._id(place), "name": call.name}
            fields["arguments"] = call.part(self._given[place], end)
            self._given[place] = end
            if len(fields) > 2 or fields["arguments"]:
                pieces.append(encoding.part(ToolCallDelta, **fields))
        return pieces

    def calls(self) -> list[Plain]:
        """Returns the calls, the last of which may have a part of its arguments."""
        found = enumerate(self._reader.calls)
        return [encoding.tool_call(self._id(place), call.name, call.arguments) for place, call in found]

    def given(self) -> list[Plain]:
        """Returns the calls as far as they are in deltas."""
        return [
            encoding.tool_call(self._id(place), call.name, call.part(0, end))
            for place, (call, end) in enumerate(zip(self._reader.calls, self._given, strict=False))
        ]

    def adopt(self, calls: Sequence[ToolCall]) -> None:
        """Take the calls of an equal choice, which had ended."""
        self._reader.adopt((call.function.name, call.function.arguments) for call in calls)

    @property
    def size(self) -> int:
        """Bytes in the result, and in deltas, at least."""
        return 2 * sum(call.size for call in self._reader.calls)

    def _id(self, place: int) -> str:
        return call_id(self.mode.job_id, self._index, place)
