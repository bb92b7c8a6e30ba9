"""Reads an answer to a chat, whole or streamed, by OpenAI's rules of both; what breaks them is a fault."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from conformance.watch.exchanges import Exchange


class BrokenRule(Exception):
    """An answer that no client could read as it is meant."""


@dataclass(slots=True)
class ReadCall:
    id: str
    name: str
    arguments: str


@dataclass(slots=True)
class ReadChoice:
    """`complete`: as the gateway says; None where it says nothing. `unlike`: pieces of its calls that can be
    read, and are not as OpenAI sends them.
    """

    content: str = ""
    calls: list[ReadCall] = field(default_factory=list)
    finish_reason: str | None = None
    complete: bool | None = None
    unlike: list[str] = field(default_factory=list)

    @property
    def is_cut(self) -> bool:
        return self.finish_reason == "length"


def job_id(exchange: Exchange) -> str:
    """The id of the job behind a chat's answer."""
    body = next(_events(exchange.told)) if exchange.is_streamed else json.loads(exchange.told)
    return str(body["id"]).removeprefix("chatcmpl-")


def choices_of(exchange: Exchange) -> list[ReadChoice]:
    """Raises BrokenRule."""
    if exchange.is_streamed:
        return _streamed(exchange.told)
    return [_whole(choice) for choice in json.loads(exchange.told)["choices"]]


def _whole(choice: Mapping[str, Any]) -> ReadChoice:
    message = choice["message"]
    calls = [_call(call) for call in message.get("tool_calls") or ()]
    return ReadChoice(message["content"] or "", calls, choice["finish_reason"], choice.get("complete"))


def _streamed(told: bytes) -> list[ReadChoice]:
    found: dict[int, ReadChoice] = {}
    for event in _events(told):
        for choice in event["choices"]:
            read = found.setdefault(choice["index"], ReadChoice())
            if read.finish_reason is not None:
                raise BrokenRule(f"a chunk behind the end of its choice: {choice}")
            delta = choice["delta"]
            read.content += delta.get("content") or ""
            for piece in delta.get("tool_calls") or ():
                _add(read, piece)
            read.finish_reason = choice["finish_reason"]
            read.complete = choice.get("complete", read.complete)
    return [found[index] for index in sorted(found)]


def _add(read: ReadChoice, piece: Mapping[str, Any]) -> None:
    """A call begins with its id, its type and its name, and no arguments; only pieces of these follow."""
    begun = len(read.calls)
    if piece["index"] == begun:
        if piece["function"]["arguments"] != "":
            read.unlike.append("the first chunk of a call has arguments")
        read.calls.append(_call(piece))
    elif piece["index"] != begun - 1:
        raise BrokenRule(f"a piece of call {piece['index']}, when {begun} have begun: {piece}")
    else:
        if {"id", "type"} & piece.keys() or piece["function"].keys() != {"arguments"}:
            read.unlike.append("a later chunk of a call has more than arguments")
        read.calls[-1].arguments += piece["function"]["arguments"]


def _call(told: Mapping[str, Any]) -> ReadCall:
    function = told["function"]
    if told.get("type") != "function" or not (told.get("id") and function.get("name")):
        raise BrokenRule(f"a call without id, name or type: {told}")
    return ReadCall(told["id"], function["name"], function["arguments"])


def _events(told: bytes) -> Iterator[dict[str, Any]]:
    lines = [line.removeprefix(b"data: ") for line in told.splitlines() if line.startswith(b"data: ")]
    if not lines or lines[-1] != b"[DONE]":
        raise BrokenRule(f"the stream has no end: {told[-200:]!r}")
    for line in lines[:-1]:
        event = json.loads(line)
        if "error" in event:
            raise BrokenRule(f"an error in the stream: {line.decode()}")
        yield event
