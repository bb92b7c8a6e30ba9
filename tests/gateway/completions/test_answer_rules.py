"""The rules by which `make conformance` judges answers with calls: each finds what it forbids."""

from __future__ import annotations

import json
from typing import Any

import pytest
from conformance.turns.call_forms import RawCalls, hermes_calls
from conformance.watch.answers import ReadCall, ReadChoice, choices_of
from conformance.watch.exchanges import CHAT, Exchange
from conformance.watch.rules import faults

MARKS = ("<tool_call>", "</tool_call>")
SCHEMA = {"type": "object", "properties": {"old": {"type": "boolean"}}, "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": "get", "parameters": SCHEMA}}]
FORMAT = {"type": "json_schema", "json_schema": {"name": "mill", "schema": SCHEMA}}
ASKED = {"tools": TOOLS}


def call(arguments: str = '{"old": true}', name: str = "get") -> dict[str, Any]:
    return {"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}}


def whole(
    *calls: dict[str, Any], content: str | None = None, end: str = "stop", asked: Any = ASKED, **more: Any
) -> Exchange:
    message = {"role": "assistant", "content": content} | ({"tool_calls": calls} if calls else {})
    choice = {"index": 0, "message": message, "finish_reason": end} | more
    return Exchange(CHAT, asked, 200, json.dumps({"id": "a", "choices": [choice]}).encode())


def streamed(*deltas: dict[str, Any], end: bytes = b"data: [DONE]\n\n") -> Exchange:
    """Its last chunk ends the choice."""
    told = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    told.append({"index": 0, "delta": {}, "finish_reason": "tool_calls", "complete": True})
    lines = b"".join(b"data: %b\n\n" % json.dumps({"id": "a", "choices": [one]}).encode() for one in told)
    return Exchange(CHAT, ASKED | {"stream": True}, 200, lines + end)


def begun(index: int = 0, arguments: str = "") -> dict[str, Any]:
    return {"tool_calls": [{"index": index} | call(arguments)]}


def piece(text: str, index: int = 0, **more: Any) -> dict[str, Any]:
    return {"tool_calls": [{"index": index, "function": {"arguments": text}} | more]}


GOOD = (
    whole(content="a mill"),
    whole(call(), end="tool_calls", complete=True),
    whole(call(), call('{"ol'), end="length", complete=False),
    whole(call('{"old": 7}'), end="tool_calls", complete=False),
    whole(content='{"old": true}', asked={"response_format": FORMAT}),
    whole(content='{"ol', end="length", asked={"response_format": FORMAT}),
    streamed({"role": "assistant", "content": ""}, begun(), piece('{"old"'), piece(": true}")),
    streamed(begun(), piece("{}"), begun(1), piece("{}", 1)),
)


@pytest.mark.parametrize("exchange", GOOD)
def test_an_answer_that_keeps_the_rules_has_no_fault(exchange: Exchange) -> None:
    assert list(faults(exchange, MARKS)) == []


@pytest.mark.parametrize(
    ("exchange", "fault"),
    [
        (Exchange(CHAT, ASKED, 400, b"tools: no"), "400 tools: no"),
        (whole(content='<tool_call>\n{"na', end="length"), "<tool_call> in the content"),
        (whole(content="then </tool_call>"), "</tool_call> in the content"),
        (whole(call(name="put"), end="tool_calls"), "a call of put"),
        (whole(call('{"ol'), end="tool_calls"), "arguments that are no JSON"),
        (whole(call('{"ol'), call(), end="length"), "arguments that are no JSON"),
        (whole(call("[]"), end="tool_calls"), "arguments that are no object"),
        (whole(call('{"old": 7}'), end="tool_calls", complete=True), "7 is not of type 'boolean'"),
        (whole(content="x", asked=ASKED | {"tool_choice": "required"}), "no call, and the answer is not cut"),
        (whole(call(), asked=ASKED | {"tool_choice": "none"}), "a call, and tool_choice was none"),
        (whole(content="x", asked=ASKED | {"response_format": FORMAT}), "no JSON"),
        (whole(content='{"old": 7}', asked={"response_format": FORMAT}), "7 is not of type 'boolean'"),
        (streamed(begun(), end=b""), "the stream has no end"),
        (streamed(begun(), end=b'data: {"error": {}}\n\ndata: [DONE]\n\n'), "an error in the stream"),
        (streamed(begun(arguments="{}")), "the first chunk of a call has arguments"),
        (streamed(begun(), piece("{}", id="call_1")), "a later chunk of a call has more"),
        (streamed(begun(), begun(1), piece("{}")), "a piece of call 0, when 2 have begun"),
        (streamed(piece("")), "a call without id, name or type"),
    ],
)
def test_a_broken_rule_is_a_fault(exchange: Exchange, fault: str) -> None:
    found = list(faults(exchange, MARKS))
    assert any(fault in one for one in found), found


def test_pieces_of_a_stream_make_its_calls() -> None:
    arguments = [piece('{"old"'), piece(": true}")]
    told = ReadChoice("", [ReadCall("call_1", "get", '{"old": true}')], "tool_calls", complete=True)
    assert choices_of(streamed(begun(), *arguments)) == [told]


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("a mill", RawCalls([])),
        (
            'so\n<tool_call>\n{"name": "get", "arguments": {"a": 1}}\n</tool_call>',
            RawCalls([("get", '{"a": 1}')]),
        ),
        ('<tool_call>\n{"name": "get", "arguments": {"a', RawCalls([], ("get", '{"a'))),
        ('<tool_call>\n{"name": "ge', RawCalls([])),
    ],
)
def test_calls_are_read_from_the_text_of_tokens(text: str, calls: RawCalls) -> None:
    assert hermes_calls(text) == calls
