"""The events of a job as the chunks of OpenAI's streams."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Protocol

from millstream.gateway.completions.completion_request import AskedGeneration
from millstream.openai.answer_body import chat_logprobs, completion_logprobs, usage_body
from millstream.openai.request_body import BatchEndpoint
from millstream.openai.tool_call_filter import SpokenText
from millstream.wire.messages.choices import ChoiceDelta
from millstream.wire.messages.job_messages import Usage
from millstream.wire.messages.tools import ToolCall

_KINDS = {BatchEndpoint.CHAT: "chat.completion.chunk", BatchEndpoint.COMPLETIONS: "text_completion"}


class Chunks:
    """Of one stream: `id`, `created` and `model` are the same in all."""

    def __init__(self, asked: AskedGeneration, answer_id: str, created_s: int) -> None:
        self._head: dict[str, Any] = {
            "id": answer_id, "object": _KINDS[asked.endpoint], "created": created_s, "model": asked.model,
        }  # fmt: skip
        if asked.service_tier is not None:
            self._head["service_tier"] = asked.service_tier
        self._include_usage = asked.include_usage
        is_chat = asked.endpoint is BatchEndpoint.CHAT
        self._choices: _Choices = ChatChoices(asked.may_call) if is_chat else CompletionChoices()

    def of(self, deltas: tuple[ChoiceDelta, ...]) -> Iterator[dict[str, Any]]:
        """The chunks of one flush of the job, each of one choice."""
        for delta in deltas:
            for choice in self._choices.of(delta):
                yield self._chunk([choice])

    def of_usage(self, usage: Usage) -> dict[str, Any]:
        """The last chunk, if it was asked for."""
        return self._chunk([]) | {"usage": usage_body(usage)}

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        chunk = self._head | {"choices": choices}
        return chunk | {"usage": None} if self._include_usage else chunk


class _Choices(Protocol):
    def of(self, delta: ChoiceDelta) -> Iterator[dict[str, Any]]:
        """What a delta adds to `choices`, in as many chunks as it takes."""
        ...


class ChatChoices:
    def __init__(self, may_call: bool) -> None:
        self._may_call = may_call
        self._spoken: dict[int, SpokenText] = {}

    def of(self, delta: ChoiceDelta) -> Iterator[dict[str, Any]]:
        if delta.index not in self._spoken:
            self._spoken[delta.index] = SpokenText()
            yield _chat(delta.index, {"role": "assistant", "content": ""})
        if delta.reasoning_content:
            yield _chat(delta.index, {"reasoning_content": delta.reasoning_content})
        text = self._text(delta)
        logprobs = chat_logprobs(delta)
        if text or logprobs:
            yield _chat(delta.index, {"content": text}) | {"logprobs": logprobs}
        if delta.tool_calls:
            calls = [_call(place, call) for place, call in enumerate(delta.tool_calls)]
            yield _chat(delta.index, {"tool_calls": calls})
        if delta.finish_reason is not None:
            ended = _chat(delta.index, {}) | {"finish_reason": delta.finish_reason}
            yield ended | ({} if delta.complete is None else {"complete": delta.complete})

    def _text(self, delta: ChoiceDelta) -> str:
        if not self._may_call:
            return delta.text
        spoken = self._spoken[delta.index]
        text = spoken.push(delta.text)
        return text + spoken.rest(bool(delta.tool_calls)) if delta.finish_reason is not None else text


class CompletionChoices:
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
        yield choice | ({} if delta.complete is None else {"complete": delta.complete})


def _chat(index: int, delta: dict[str, Any]) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}


def _call(place: int, call: ToolCall) -> dict[str, Any]:
    return {"index": place, **call.model_dump()}
