"""Tools, the choice among them and calls in messages, in OpenAI's shapes, as a client sends them."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from millstream.client.submit.requests import draft
from millstream.errors import InvalidRequest
from millstream.openai.offered_tools import unknown_in_tools
from millstream.wire.messages import codec
from millstream.wire.messages.job_messages import Request
from millstream.wire.messages.tools import FunctionCall, Tool, ToolCall, ToolChoice

HELLO = {"role": "user", "content": "hi"}
PARAMETERS = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {}}, "required": ["b"]}
GET = {
    "type": "function",
    "function": {"name": "get", "description": "d", "parameters": PARAMETERS, "strict": True},
}
TEXT = '{"type":"object","properties":{"b":{"type":"integer"},"a":{}},"required":["b"]}'
CALL = {"id": "c1", "type": "function", "function": {"name": "get", "arguments": '{"b":1}'}}


class Place(BaseModel):
    city: str


def sent(**fields: Any) -> Request:
    made = draft({"messages": [HELLO]} | fields, 1_000, 1_000_000)
    request = codec.decode(Request, made.payload)
    assert (request.version, made.digest) == (made.version, request.digest())
    return request


def function(**fields: Any) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": "get"} | fields}]


def test_tools_travel_with_their_key_order() -> None:
    made = sent(tools=[GET], tool_choice="required", parallel_tool_calls=False)
    assert made.tools == (Tool(name="get", description="d", parameters=TEXT, strict=True),)
    told = (made.tool_choice, made.parallel_tool_calls, made.version)
    assert told == (ToolChoice(type="required"), False, 3)
    named = sent(tools=made.tools, tool_choice={"type": "function", "function": {"name": "get"}})
    assert named.tool_choice == ToolChoice(type="function", name="get")
    assert sent(tools=made.tools, tool_choice=named.tool_choice) == named


def test_parameters_may_be_a_model_class() -> None:
    [tool] = sent(tools=function(parameters=Place), tool_choice="required").tools or ()
    assert '"properties":{"city":' in tool.parameters
    assert '"additionalProperties":false' in tool.parameters


@pytest.mark.parametrize(
    "nothing", [{}, {"tools": []}, {"tools": None}, {"tool_choice": "auto"}, {"tool_choice": "none"},
                {"parallel_tool_calls": False}, {"tools": [], "tool_choice": "auto"}]
)  # fmt: skip
def test_what_asks_for_no_tools_changes_nothing(nothing: dict[str, Any]) -> None:
    assert sent(**nothing) == sent()
    assert sent().version == 1


def test_an_answer_and_the_outcome_of_its_calls_go_back() -> None:
    outcome = {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "7"}]}
    call = ToolCall(id="c1", function=FunctionCall(name="get", arguments='{"b":1}'))
    for calls in ([CALL], (call,)):
        made = sent(messages=[HELLO, {"role": "assistant", "content": None, "tool_calls": calls}, outcome])
        assert made.messages is not None
        assert made.messages[1].tool_calls == (call,)
        assert (made.messages[2].content, made.messages[2].tool_call_id) == ("7", "c1")
        assert made.version == 3
    assert sent(messages=[{**HELLO, "tool_calls": None}]) == sent()


def test_names_with_dots_need_newer_workers() -> None:
    told = [sent(tools=function(name=name)).version for name in ("get_it-2", "a.b:c/d", "g" * 70)]
    assert told == [3, 5, 5]


def test_what_stands_beside_a_function_is_passed_over() -> None:
    more = [
        {
            **GET,
            "cache_control": {"type": "ephemeral"},
            "function": {**GET["function"], "defer_loading": True},
        }
    ]
    assert sent(tools=more) == sent(tools=[GET])
    told = unknown_in_tools([*more, {**GET, "x": None}])
    assert told == ("tools.cache_control", "tools.function.defer_loading")
    assert unknown_in_tools("no list") == unknown_in_tools([5]) == ()


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"tools": "get"}, "tools", "give a list"),
    ({"tools": ["get"]}, "tools[0]", 'give {"type": "function"'),
    ({"tools": [{"type": "custom"}]}, "tools[0].type", "only tools of type function"),
    ({"tools": [{"type": "function"}]}, "tools[0].function", 'give {"name"'),
    ({"tools": [{"type": "function", "name": "get"}]}, "tools[0].function", 'give {"name"'),
    ({"tools": function(name=None)}, "tools[0].function.name", "is missing"),
    ({"tools": function(name="get it")}, "tools[0].function.name", "pattern"),
    ({"tools": function(name="g" * 129)}, "tools[0].function.name", "pattern"),
    ({"tools": function(parameters="{}")}, "tools[0].function.parameters", "an object"),
    ({"tools": function(), "tool_choice": "get"}, "tool_choice", "auto, none, required or {"),
    ({"tools": function(), "tool_choice": {"type": "function"}}, "tool_choice", "auto, none, required or {"),
    ({"tools": function(), "parallel_tool_calls": "no"}, "parallel_tool_calls", "true or false"),
    ({"messages": [{"role": "assistant", "tool_calls": "get"}]}, "messages[0].tool_calls", "give the list"),
    ({"messages": [{"role": "a", "tool_calls": [{"id": 5}]}]}, "messages[0].tool_calls[0].id", "str"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "field", "problem"), WRONG)
def test_what_is_wrong_is_named(fields: dict[str, Any], field: str, problem: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        sent(**fields)
    assert caught.value.field == field
    assert problem in caught.value.problem
