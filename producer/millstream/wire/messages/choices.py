"""Defines a job's output: its choices, whole and as deltas, with the log-probabilities of their tokens."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar, overload

from pydantic import BaseModel, Field

from millstream.errors import IncompleteAnswer
from millstream.wire.messages.codec import Message, Number
from millstream.wire.messages.sampling import TokenId
from millstream.wire.messages.tools import CALL_HEAD, FunctionCall, ToolCall

M = TypeVar("M", bound=BaseModel)
Byte = Annotated[int, Field(ge=0, le=255)]
FinishReason = Literal["stop", "length", "tool_calls"]


class TopLogprob(Message):
    """`bytes`: the token's own, where `token` does not show them: it is a part of a character or, without
    any, no text.
    """

    token_id: TokenId
    token: str
    logprob: float
    bytes: tuple[Byte, ...] | None = None


class TokenLogprob(TopLogprob):
    """The log-probability of one sampled token, and of the most likely ones at its place.

    Natural logarithms of the model's own distribution, before penalties, bias and temperature.
    """

    top: tuple[TopLogprob, ...] = ()


class ChoiceFields(Message):
    """The fields of a choice, of which a delta has its part."""

    index: Number = 0
    token_ids: tuple[TokenId, ...] = Field((), repr=False)
    text: str = ""
    logprobs: tuple[TokenLogprob, ...] | None = Field(None, repr=False)
    reasoning_content: str = ""
    finish_reason: FinishReason | None = None
    complete: bool | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    schema_error: str = ""


# The fields of a choice that its last delta has.
OF_END = ("finish_reason", "complete", "tool_calls", "schema_error")


class ToolCallDelta(Message):
    """New text of the call at place `index` of a choice. The first one of a call has its `id` and `name`."""

    index: Number = 0
    id: str = ""
    name: str = ""
    arguments: str = ""


class ChoiceDelta(ChoiceFields):
    """New tokens of one choice. `text` may lag the ids: incomplete UTF-8 and possible stop strings wait.
    `reasoning_content` comes before any text, and text before calls. Only its last delta has the fields
    OF_END; older workers give calls in these alone, newer ones piece by piece, too.
    """

    tool_call_deltas: tuple[ToolCallDelta, ...] = ()


def calls_of(deltas: Sequence[ChoiceDelta]) -> tuple[ToolCall, ...]:
    """Returns the calls in the deltas of one choice so far: those at its end; else those that their pieces
    make, the last of which may have a part of its arguments.
    """
    if deltas and deltas[-1].finish_reason is not None:
        return deltas[-1].tool_calls
    begun: dict[int, ToolCallDelta] = {}
    arguments: defaultdict[int, str] = defaultdict(str)
    for piece in (piece for delta in deltas for piece in delta.tool_call_deltas):
        begun.setdefault(piece.index, piece)
        arguments[piece.index] += piece.arguments
    return tuple(
        ToolCall(id=first.id, function=FunctionCall(name=first.name, arguments=arguments[place]))
        for place, first in begun.items()
    )


class Delta(Message):
    """The body of one token log entry: the output of one flush of a job."""

    choices: tuple[ChoiceDelta, ...] = ()


class Choice(ChoiceFields):
    """`complete` is True if the answer is whole by its response format or as calls of tools; False: it was
    cut by max_tokens, the end of the context or a stop string, or has calls that do not fit the functions'
    parameters: `schema_error` says why then. None: it has no format, or did not come to its end.

    `text` comes before the calls, if there are any: the last of them may have a part of its arguments where
    the answer was cut. `reasoning_content` is the thought before both.
    """

    @property
    def content(self) -> str | None:
        """The text; None if there are calls and nothing else. Older workers leave the calls in it."""
        if not self.tool_calls:
            return self.text
        return self.text.partition(CALL_HEAD)[0].strip() or None

    @overload
    def parse(self, model: None = None) -> Any: ...

    @overload
    def parse(self, model: type[M]) -> M: ...

    def parse(self, model: type[M] | None = None) -> M | Any:
        """Returns the JSON text as an object of a pydantic model or, without one, as plain Python values.

        Raises IncompleteAnswer unless `complete`; ValueError if the text is no JSON (of a regex, a choice or
        a grammar), or nothing that the model takes, or if the answer is calls of tools.
        """
        if not self.complete:
            was_cut = self.complete is False and not self.schema_error
            cut_by = self.finish_reason if was_cut else None
            raise IncompleteAnswer(self.index, self.text, cut_by, self.schema_error)
        if self.tool_calls and not self.text:
            names = ", ".join(call.function.name for call in self.tool_calls)
            raise ValueError(f"the answer calls tools ({names:.200}) and has no text; read its tool_calls")
        return json.loads(self.text) if model is None else model.model_validate_json(self.text)
