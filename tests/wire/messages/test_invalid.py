"""What is wrong with a request, in the words that reach its sender."""

from __future__ import annotations

import contextlib
import json
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from millstream.errors import InvalidRequest
from millstream.wire.messages import response_format
from millstream.wire.messages.codec import pack
from millstream.wire.messages.job_messages import INPUTS, Request, Result, read_request
from millstream.wire.messages.validation_errors import invalid_request


def nested(depth: int) -> str:
    """A schema of lists and maps that are so deep inside of each other."""
    text = "{}" if depth % 2 else '{"a": []}'
    for _ in range((depth - 1) // 2):
        text = f'{{"allOf": [{text}]}}'
    return text


# What is given beside a prompt, or in its place; the field that is named, and what is said of it.
OF_REQUESTS = [
    ({"prompt": 5}, "prompt", "must be a string (got 5)"),
    ({"prompt": b"\xff"}, "prompt", "must be valid Unicode text; replace what is not (got b'\\xff')"),
    ({"messages": "Hi"}, "messages", "must be a list (got 'Hi')"),
    ({"messages": [5]}, "messages[0]", "must be a map (a JSON object) (got 5)"),
    ({"messages": [{"role": "user"}]}, "messages[0].content", "is missing; add it (got None)"),
    ({"token_ids": [1, -1]}, "token_ids[1]", "must be at least 0 (got -1)"),
    ({"lane": "fast"}, "lane", "must be 'interactive' or 'batch' (got 'fast')"),
    ({"metadata": 5}, "metadata", "must be a map (a JSON object) (got 5)"),
    ({"stream": "maybe"}, "stream", "must be true or false (got 'maybe')"),
    ({"tenant": "t" * 600}, "tenant", "must have at most 512 characters and has 600; shorten it (got 'ttt"),
    ({"version": "one"}, "version", "must be a whole number (got 'one')"),
    ({"sampling": {"n": 1.5}}, "sampling.n", "must be a whole number (got 1.5)"),
    ({"sampling": {"n": 129}}, "sampling.n", "must be at most 128 (got 129)"),
    ({"sampling": {"top_p": float("nan")}}, "sampling.top_p", "must be a finite number (got nan)"),
    ({"sampling": {"top_p": 0}}, "sampling.top_p", "must be above 0 (got 0)"),
    ({"sampling": {"stop": ["x"] * 65}}, "sampling.stop", "must have at most 64 items; leave some out"),
    (
        {"sampling": {"logit_bias": {"x": 1.0}}},
        "sampling.logit_bias.x",
        "a key of it must be a whole number (got 'x')",
    ),
    (
        {"sampling": {"min_tokens": 9, "max_tokens": 5}},
        "sampling.min_tokens",
        "is above max_tokens 5; lower it (got 9)",
    ),
    (
        {"sampling": {"top_logprobs": 2}},
        "sampling.top_logprobs",
        "needs logprobs: true; set it, or leave top_logprobs out (got 2)",
    ),
    ({}, "prompt", "give exactly one of prompt, messages and token_ids (got None)"),
    ({"prompt": "a", "token_ids": [1]}, "token_ids", "token_ids, not prompt and token_ids (got"),
    ({"prompt": ""}, "prompt", "is empty; give some input (got '')"),
    ({"messages": []}, "messages", "is empty"),
    ({"token_ids": []}, "token_ids", "is empty"),
    ({"token_ids": [2**31]}, "token_ids[0]", ""),
    ({"prompt": "a" * (4 * 1024 * 1024 + 1)}, "prompt", ""),
    ({"prompt": "a\ud800"}, "prompt", ""),  # half of a character: no UTF-8 can say it
    ({"messages": [{"role": "user", "content": "\udfff"}]}, "messages[0].content", ""),
    ({"messages": [{"role": "", "content": "a"}]}, "messages[0].role", ""),
    ({"messages": [{"role": "assistant"}]}, "messages[0].content", "is missing"),
    ({"messages": [{"role": "a", "tool_calls": [{"id": ""}]}]}, "messages[0].tool_calls[0].function", "is m"),
    ({"deadline_ms": 0}, "deadline_ms", ""),
    ({"deadline_ms": 2**60}, "deadline_ms", ""),
    ({"metadata": {"k": 1}}, "metadata.k", ""),
    ({"metadata": {"k": "x" * 513}}, "metadata.k", "at most 512 characters"),
    ({"sampling": {"stop": ["x" * 1025]}}, "sampling.stop[0]", "at most 1024 characters"),
    ({"sampling": {"stop_token_ids": list(range(257))}}, "sampling.stop_token_ids", "at most 256 items"),
    ({"metadata": {str(i): "" for i in range(65)}}, "metadata", ""),
    ({"traceparent": "t" * 129}, "traceparent", ""),
]
OF_SAMPLING = [
    ("max_tokens", 0), ("max_tokens", 2**24 + 1), ("min_tokens", -1), ("temperature", -0.1),
    ("temperature", float("inf")), ("top_p", 1.1), ("top_k", -1), ("min_p", 1.1), ("seed", 2**63),
    ("stop", [""]), ("stop", "text"), ("stop_token_ids", [-1]), ("repetition_penalty", 0),
    ("presence_penalty", 2.1), ("frequency_penalty", -2.1), ("logit_bias", {1: 101}),
    ("logit_bias", {-1: 1}), ("logit_bias", dict.fromkeys(range(1025), 1.0)), ("top_logprobs", 21),
    ("n", 0),
]  # fmt: skip
OF_FORMATS: list[tuple[dict[str, Any], str, str]] = [
    ({}, "type", "is missing"),
    ({"type": "json"}, "type", "must be 'json_schema', 'json_object', 'regex', 'choice' or 'grammar'"),
    ({"type": "json_schema"}, "text", "is empty; give the json_schema"),
    ({"type": "json_schema", "text": "{"}, "text", "is no JSON: Expecting property name"),
    ({"type": "json_schema", "text": '{"a": NaN}'}, "text", "NaN is no JSON number"),
    ({"type": "json_schema", "text": "[" * 100_000}, "text", "nested too deep"),
    ({"type": "json_schema", "text": "9" * 5000}, "text", "is no JSON"),
    ({"type": "json_schema", "text": nested(65)}, "text", "more than 64 deep; move parts to $defs"),
    ({"type": "json_schema", "text": nested(66)}, "text", "more than 64 deep"),
    ({"type": "json_schema", "text": "false"}, "text", "`false`, which no answer can fit"),
    ({"type": "json_schema", "text": "[]"}, "text", "which is an object"),
    ({"type": "json_schema", "text": "5"}, "text", "which is an object"),
    ({"type": "regex", "text": "a" * (256 * 1024 + 1)}, "text", "at most 262144 characters"),
    ({"type": "regex", "text": "ä" * (128 * 1024 + 1)}, "text", "262146 bytes and may take 262144"),
    ({"type": "json_object", "text": "{}"}, "text", "must be empty with json_object"),
    ({"type": "regex"}, "text", "is empty; give the regex"),
    ({"type": "grammar", "text": ""}, "text", "is empty; give the grammar"),
    ({"type": "choice", "text": '"yes"'}, "text", "a list of texts"),
    ({"type": "choice", "text": '["a", 5]'}, "text", "a list of texts"),
    ({"type": "choice", "text": '["a", ""]'}, "text", "none of them empty"),
    ({"type": "choice", "text": "[]"}, "text", "1 to 10000 texts and has 0"),
    ({"type": "choice", "text": json.dumps([str(i) for i in range(10_001)])}, "text", "has 10001"),
    ({"type": "choice", "text": '["a", "b", "b"]'}, "text", "has 'b' more than once"),
    ({"type": "choice", "text": "{"}, "text", "a list of texts"),
    ({"type": "regex", "text": "a", "compact": True}, "compact", "not for a regex"),
    ({"type": "choice", "text": '["a"]', "whitespace_pattern": " "}, "whitespace_pattern", "a choice"),
    (
        {"type": "json_object", "compact": True, "whitespace_pattern": " "},
        "whitespace_pattern",
        "not for JSON without whitespace",
    ),
    ({"type": "json_object", "whitespace_pattern": "x" * 257}, "whitespace_pattern", "at most 256"),
    ({"type": "json_object", "whitespace_pattern": ""}, "whitespace_pattern", "at least 1"),
]
GET = {"name": "get", "parameters": '{"type":"object"}'}
OF_TOOLS: list[tuple[dict[str, Any], str, str]] = [
    ({"tools": []}, "tools", "1 to 128 functions"),
    ({"tools": [GET] * 129}, "tools", "1 to 128 functions"),
    ({"tools": [GET, GET]}, "tools", "is the name of more than one function"),
    ({"tools": [{"name": "a b"}]}, "tools[0].name", "pattern"),
    ({"tools": [{"name": "a", "parameters": "{"}]}, "tools[0].parameters", "is no JSON"),
    ({"tools": [{"name": "a", "parameters": "[]"}]}, "tools[0].parameters", "must be a JSON schema"),
    ({"tools": [{"name": "a", "parameters": "true"}]}, "tools[0].parameters", '"type": "object"'),
    ({"tools": [{"name": "a", "parameters": '{"type":"array"}'}]}, "tools[0].parameters", '"type": "object"'),
    ({"tools": [GET | {"name": str(n), "description": "x" * 40_000} for n in range(7)]}, "tools", "at most"),
    ({"tools": [GET], "tool_choice": {"type": "function", "name": "put"}}, "tool_choice", "none of"),
    ({"tool_choice": {"type": "required"}}, "tool_choice", "needs tools"),
    ({"tools": [GET], "messages": None, "prompt": "a"}, "tools", "needs messages"),
    ({"tools": [GET], "sampling": {"min_tokens": 3}}, "tools", "min_tokens 3"),
    ({"tools": [GET], "sampling": {"ignore_eos": True}}, "tools", "ignore_eos True"),
]


def calling(arguments: str) -> dict[str, Any]:
    call = {"id": "c", "function": {"name": "f", "arguments": arguments}}
    return {"messages": [{"role": "a", "tool_calls": [call]}]}


ARGUMENTS = "messages[0].tool_calls[0].function.arguments"
OF_TOOLS += [
    (calling(nested(65)), ARGUMENTS, "more than 64 deep; shorten them, or leave the call out"),
    (calling(f"[{'{},' * 2**16}1]"), ARGUMENTS, "have 65537 opening brackets, 65536 at most; shorten them"),
    ({"chat_template_kwargs": {"a": json.loads(nested(64))}}, "chat_template_kwargs", "more than 64 deep"),
]  # fmt: skip
HELLO = [{"role": "user", "content": "hi"}]
WRONG = [
    *OF_REQUESTS,
    *(({"sampling": {name: wrong}}, f"sampling.{name}", "") for name, wrong in OF_SAMPLING),
    *(({"response_format": given}, f"response_format.{name}", says) for given, name, says in OF_FORMATS),
    *(({"messages": HELLO} | fields, name, says) for fields, name, says in OF_TOOLS),
]


@pytest.mark.parametrize(("fields", "field", "says"), WRONG, ids=lambda value: str(value)[:40])
def test_field_value_and_remedy_are_named(fields: dict[str, Any], field: str, says: str) -> None:
    inputs = {} if fields.keys() & {*INPUTS} or not fields else {"prompt": "x"}
    with pytest.raises(ValidationError) as caught:
        Request.model_validate(inputs | fields)
    wrong = invalid_request(caught.value)
    assert wrong.field == field or (not says and wrong.field.startswith((f"{field}.", f"{field}[")))
    assert says in str(wrong)
    assert len(str(wrong)) < 500


def test_a_schema_that_is_just_not_too_deep() -> None:
    Request.model_validate({"prompt": "x", "response_format": {"type": "json_schema", "text": nested(64)}})


@pytest.mark.parametrize("arguments", [nested(64), "[" * 65, '"' + "[" * 999, "{}" * 99, nested(64) * 2])
def test_arguments_that_are_not_too_deep(arguments: str) -> None:
    """Such as are no JSON are text for a template."""
    call = {"id": "c", "function": {"name": "f", "arguments": arguments}}
    Request.model_validate({"messages": [{"role": "a", "tool_calls": [call]}]})


def test_an_answer_may_have_deeper_arguments_than_a_request() -> None:
    """It is read, whatever the model wrote."""
    call = {"id": "c", "function": {"name": "f", "arguments": nested(300)}}
    assert Result.model_validate({"choices": [{"tool_calls": [call]}]}).choices[0].tool_calls


def test_what_no_bound_has_caught_is_an_error_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(*asked: object) -> str:
        raise RecursionError

    monkeypatch.setitem(response_format._PROBLEMS, "regex", endless)
    error = refused({"prompt": "x", "response_format": {"type": "regex", "text": "a"}})
    assert error.field == "request"
    assert "nested too deep, or has too large a number" in str(error)


def refused(fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        read_request(pack(fields))
    return caught.value


def test_what_is_answered_is_short_however_long_the_request() -> None:
    """And has no more of a prompt than its beginning."""
    assert len(str(refused({"prompt": "x", "metadata": {"k" * 10**6: 5}}))) < 400
    assert len(refused({"prompt": "x", "metadata": {"k" * 10**6: 5}}).field) < 100
    secret = uuid4().hex
    assert secret not in str(refused({"prompt": "x" * 2**22 + secret}))


@given(st.binary(max_size=200))
def test_any_bytes_are_a_request_or_an_invalid_one(data: bytes) -> None:
    with contextlib.suppress(InvalidRequest):
        read_request(data)
