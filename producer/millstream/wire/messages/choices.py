"""Defines a job's output: its choices, whole and as deltas, with the log-probabilities of their tokens."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, TypeVar, overload

from pydantic import BaseModel, Field

from millstream.errors import IncompleteAnswer
from millstream.wire.messages.codec import Message, Number
from millstream.wire.messages.sampling import TokenId
from millstream.wire.messages.tools import CALL_BEGIN, ToolCall

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


class ChoiceDelta(ChoiceFields):
    """New tokens of one choice. `text` may lag the ids: incomplete UTF-8 and possible stop strings wait.
    `reasoning_content` comes before any text. Only its last delta has the fields OF_END.
    """


class Delta(Message):
    """The body of one token log entry: the output of one flush of a job."""

    choices: tuple[ChoiceDelta, ...] = ()


class Choice(ChoiceFields):
    """`complete` is True if the answer is whole by its response format or as calls of tools; False: it was
    cut by max_tokens, the end of the context or a stop string, or has calls that do not fit the functions'
    parameters: `schema_error` says why then. None: it has no format, or did not come to its end.

    `text` is the answer as the model wrote it, also where it is calls of tools; `content` is what it says
    beside them. `reasoning_content` is its thought before the answer.
    """

    @property
    def content(self) -> str | None:
        """The text without the calls of tools; None if nothing else is left."""
        if not self.tool_calls:
            return self.text
        return self.text.partition(CALL_BEGIN)[0].strip() or None

    @overload
    def parse(self, model: None = None) -> Any: ...

    @overload
    def parse(self, model: type[M]) -> M: ...

    def parse(self, model: type[M] | None = None) -> M | Any:
        """Returns the JSON text as an object of a pydantic model or, without one, as plain Python values.

        Raises IncompleteAnswer unless `complete`; ValueError if the text is no JSON (of a regex, a choice or
        a grammar), or nothing that the model takes.
        """
        if not self.complete:
            was_cut = self.complete is False and not self.schema_error
            cut_by = self.finish_reason if was_cut else None
            raise IncompleteAnswer(self.index, self.text, cut_by, self.schema_error)
        return json.loads(self.text) if model is None else model.model_validate_json(self.text)
