"""Converts the deltas of a job to the chunks of OpenAI's streams, whose text has no tool calls."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from millstream.openai.answer_body import chat_logprobs, completeness, completion_logprobs, usage_body
from millstream.openai.api_endpoint import ApiEndpoint
from millstream.wire.messages.choices import ChoiceDelta
from millstream.wire.messages.job_messages import Usage
from millstream.wire.messages.tools import CALL_HEAD

_KINDS = {ApiEndpoint.CHAT: "chat.completion.chunk", ApiEndpoint.COMPLETIONS: "text_completion"}


class ToolCallFilter:
    """One choice's text without the tool calls that workers of version 0.2.0 leave in it. The pieces add up
    to `Choice.content`, leading white space aside; without calls, to the whole text.
    """

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held = ""

    def push(self, text: str) -> str:
        """Takes new text; returns the part that can be shown now: nothing that may begin a call, or be white
        space before one.
        """
        self._held += text
        shown, call, _ = self._held.partition(CALL_HEAD)
        if not call:
            shown = shown[: len(shown) - _begun_tag(shown)]
        shown = shown.rstrip()
        self._held = self._held[len(shown) :]
        return shown

    def rest(self, has_calls: bool) -> str:
        """Returns, at the text's end, what was held for calls that did not come in it."""
        rest, self._held = self._held, ""
        return "" if has_calls else rest


def _begun_tag(text: str) -> int:
    """Returns how many of the last characters may be the beginning of a call."""
    longest = min(len(text), len(CALL_HEAD) - 1)
    return next((size for size in range(longest, 0, -1) if CALL_HEAD.startswith(text[-size:])), 0)


class Chunks:
    """Converts the deltas of one job. `head`: the fields that are the same in all chunks, such as `id`;
    `may_call`: the request has tools; `first`: the place of its first choice among those of all jobs.
    """

    def __init__(
        self,
        endpoint: ApiEndpoint,
        head: Mapping[str, Any],
        *,
        may_call: bool,
        include_usage: bool,
        first: int = 0,
    ) -> None:
        self._head: dict[str, Any] = {"object": _KINDS[endpoint], **head}
        self._include_usage = include_usage
        self._first = first
        is_chat = endpoint is ApiEndpoint.CHAT
        self._choices = ChatChoices(may_call) if is_chat else CompletionChoices()

    def of(self, deltas: tuple[ChoiceDelta, ...]) -> Iterator[dict[str, Any]]:
        """Yields the chunks of one flush of the job, each of one choice."""
        for delta in deltas:
            for choice in self._choices.of(delta):
                choice["index"] += self._first
                yield self._chunk([choice])

    def of_usage(self, usage: Usage) -> dict[str, Any]:
        """Returns the last chunk of a stream whose request asked for usage."""
        return self._chunk([]) | {"usage": usage_body(usage)}

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        chunk = self._head | {"choices": choices}
        return chunk | {"usage": None} if self._include_usage else chunk


class CallChunks:
    """Converts the calls of one choice: piece by piece, and at the end what was in no piece, as older workers
    give them only then.
    """

    __slots__ = ("_given",)

    def __init__(self) -> None:
        self._given: dict[int, int] = {}  # characters of arguments, by call

    def of(self, delta: ChoiceDelta) -> Iterator[dict[str, Any]]:
        for piece in delta.tool_call_deltas:
            yield from self._pieces(piece.index, piece.id, piece.name, piece.arguments)
        for place, call in enumerate(delta.tool_calls):
            rest = call.function.arguments[self._given.get(place, 0) :]
            yield from self._pieces(place, call.id, call.function.name, rest)

    def _pieces(self, place: int, own_id: str, name: str, arguments: str) -> Iterator[dict[str, Any]]:
        """As OpenAI's: the first piece of a call has no arguments."""
        if place not in self._given:
            self._given[place] = 0
            function = {"name": name, "arguments": ""}
            yield {"index": place, "id": own_id, "type": "function", "function": function}
        if arguments:
            self._given[place] += len(arguments)
            yield {"index": place, "function": {"arguments": arguments}}


class ChatChoices:
    """Yields a delta's additions to `choices`, in as many chunks as it takes."""

    def __init__(self, may_call: bool) -> None:
        self._may_call = may_call
        self._filters: dict[int, ToolCallFilter] = {}
        self._calls: defaultdict[int, CallChunks] = defaultdict(CallChunks)

    def of(self, delta: ChoiceDelta) -> Iterator[dict[str, Any]]:
        if delta.index not in self._filters:
            self._filters[delta.index] = ToolCallFilter()
            yield _chat(delta.index, {"role": "assistant", "content": ""})
        if delta.reasoning_content:
            yield _chat(delta.index, {"reasoning_content": delta.reasoning_content})
        text = self._text(delta)
        logprobs = chat_logprobs(delta)
        if text or logprobs:
            yield _chat(delta.index, {"content": text}) | {"logprobs": logprobs}
        for piece in self._calls[delta.index].of(delta):
            yield _chat(delta.index, {"tool_calls": [piece]})
        if delta.finish_reason is not None:
            ended = _chat(delta.index, {}) | {"finish_reason": delta.finish_reason}
            yield ended | completeness(delta)

    def _text(self, delta: ChoiceDelta) -> str:
        if not self._may_call:
            return delta.text
        own = self._filters[delta.index]
        text = own.push(delta.text)
        if delta.tool_call_deltas:  # of a newer worker, which leaves no calls in the text
            return text + own.rest(has_calls=False)
        return text + own.rest(bool(delta.tool_calls)) if delta.finish_reason is not None else text


class CompletionChoices:
    """The same for /v1/completions."""

    def __init__(self) -> None:
        self._characters: defaultdict[int, int] = defaultdict(int)  # of all tokens so far, by choice

    def of(self, delta: ChoiceDelta) -> Iterator[dict[str, Any]]:
        logprobs = completion_logprobs(delta, self._characters[delta.index])
        self._characters[delta.index] += sum(len(drawn.token) for drawn in delta.logprobs or ())
        if not (delta.text or logprobs or delta.finish_reason):
            return
        choice = {
            "text": delta.text,
            "index": delta.index,
            "logprobs": logprobs,
            "finish_reason": delta.finish_reason,
        }
        yield choice | completeness(delta)


def _chat(index: int, delta: dict[str, Any]) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
