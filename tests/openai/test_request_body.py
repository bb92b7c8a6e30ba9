"""OpenAI's request bodies: what each field becomes, and how each wrong one is named."""

from __future__ import annotations

import json
from typing import Any

import pytest

from millstream.errors import InvalidRequest
from millstream.openai.api_endpoint import ApiEndpoint
from millstream.openai.fields.value_forms import TOP_TOKEN_ONLY
from millstream.openai.request_body import read_body
from millstream.openai.unsupported_field import UnsupportedField
from millstream.wire.keys import Lane
from millstream.wire.messages.response_format import ResponseFormat

HELLO = [{"role": "user", "content": "hello"}]


def completion(**body: Any) -> Any:
    return read_body(ApiEndpoint.COMPLETIONS, {"prompt": "hello"} | body, lane=Lane.BATCH, tenant="")


def chat(**body: Any) -> Any:
    return read_body(ApiEndpoint.CHAT, {"messages": HELLO} | body, lane=Lane.BATCH, tenant="")


def sampling(body: Any) -> dict[str, Any]:
    kept: dict[str, Any] = body.request.sampling.model_dump(exclude_unset=True)
    return kept


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, {"max_tokens": 16}),
        ({"max_tokens": 5, "temperature": 0}, {"max_tokens": 5, "temperature": 0.0}),
        ({"stop": "\n"}, {"max_tokens": 16, "stop": ("\n",)}),
        ({"stop": ["a", "b"]}, {"max_tokens": 16, "stop": ("a", "b")}),
        ({"stop": None, "top_p": None}, {"max_tokens": 16}),
        ({"logprobs": 3}, {"max_tokens": 16, "logprobs": True, "top_logprobs": 3}),
        ({"logit_bias": {"50": -100}}, {"max_tokens": 16, "logit_bias": {50: -100.0}}),
        (
            {"top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1, "min_tokens": 2, "ignore_eos": True},
            {"max_tokens": 16, "top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1, "min_tokens": 2,
             "ignore_eos": True},
        ),
        (
            {"n": 2, "seed": 7, "presence_penalty": 1, "frequency_penalty": -1, "stop_token_ids": [3]},
            {"max_tokens": 16, "n": 2, "seed": 7, "presence_penalty": 1.0, "frequency_penalty": -1.0,
             "stop_token_ids": (3,)},
        ),
    ],
)  # fmt: skip
def test_fields_of_completions(body: dict[str, Any], expected: dict[str, Any]) -> None:
    assert sampling(completion(**body)) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, {}),
        ({"max_completion_tokens": 9}, {"max_tokens": 9}),
        ({"max_tokens": 9}, {"max_tokens": 9}),
        ({"max_tokens": 9, "max_completion_tokens": 9}, {"max_tokens": 9}),
        ({"logprobs": True, "top_logprobs": 2}, {"logprobs": True, "top_logprobs": 2}),
        ({"tools": [], "stream": False, "response_format": {"type": "text"}, "user": "u1"}, {}),
    ],
)
def test_fields_of_chat(body: dict[str, Any], expected: dict[str, Any]) -> None:
    assert sampling(chat(**body)) == expected


def test_inputs() -> None:
    assert completion(prompt=[1, 2, 3]).request.token_ids == (1, 2, 3)
    assert completion(prompt="héllo").request.prompt == "héllo"


def test_a_begun_answer_is_gone_on_with() -> None:
    turns = [*HELLO, {"role": "assistant", "content": "Once P"}]
    request = chat(messages=turns, continue_final_message=True, reasoning_effort="low").request
    assert (request.continue_final_message, request.add_generation_prompt) == (True, False)
    assert (request.reasoning_effort, request.lowest_version()) == ("low", 5)
    with pytest.raises(InvalidRequest, match=r"^add_generation_prompt: begins a new turn"):
        chat(messages=turns, continue_final_message=True, add_generation_prompt=True)


def test_limits_that_are_off_are_left_out() -> None:
    body = completion(top_k=-1, stop="", thinking_token_budget=-1, max_tokens=5.0, n=2.0, top_p=0)
    assert sampling(body) == {"top_k": 0, "stop": (), "max_tokens": 5, "n": 2, "top_p": TOP_TOKEN_ONLY}
    assert body.request.lowest_version() == 1


def test_lane_tenant_and_metadata_go_along() -> None:
    body = read_body(
        ApiEndpoint.COMPLETIONS, {"prompt": "x", "metadata": {"a": "b"}}, lane=Lane.INTERACTIVE, tenant="t"
    )
    assert body.request.lane is Lane.INTERACTIVE
    assert body.request.tenant == "t"
    assert body.request.metadata == {"a": "b"}


@pytest.mark.parametrize(
    ("model", "queue"), [(None, "default"), ("", "default"), ("default", "default"), ("org/m", "org/m")]
)
def test_the_model_names_the_queue(model: str | None, queue: str) -> None:
    assert completion(model=model).queue == queue


SCHEMA = {"type": "object", "properties": {"b": {}, "a": {}}}
TEXT = '{"type":"object","properties":{"b":{},"a":{}}}'


@pytest.mark.parametrize(
    ("body", "made"),
    [
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, {"type": "json_object"}),
        ({"structured_outputs": {"regex": "a+"}}, {"type": "regex", "text": "a+"}),
        (
            {"guided_json": SCHEMA, "guided_whitespace_pattern": " ?"},
            {"type": "json_schema", "text": TEXT, "whitespace_pattern": " ?"},
        ),
        ({"guided_json": TEXT, "guided_regex": None}, {"type": "json_schema", "text": TEXT}),
        ({"guided_regex": "a+"}, {"type": "regex", "text": "a+"}),
        ({"guided_choice": ["a", "b"]}, {"type": "choice", "text": '["a","b"]'}),
        ({"guided_grammar": "start: /a/"}, {"type": "grammar", "text": "start: /a/"}),
    ],
)
def test_the_format_of_the_answer(body: dict[str, Any], made: dict[str, Any] | None) -> None:
    for read in (chat, completion):
        line = read(**body)
        assert line.request.response_format == (made and ResponseFormat(**made))
        assert line.ignored == ()
        assert line.deprecated == tuple(name for name in body if "guided" in name and body[name])


GET = {"type": "function", "function": {"name": "get", "parameters": {"type": "object", "properties": {}}}}
PART: dict[str, Any] = {"type": "video_url", "video_url": {}}
DEEP = json.loads("[" * 300 + "]" * 300)
DEEP_CALL = {"id": "c", "type": "function", "function": {"name": "get", "arguments": json.dumps(DEEP)}}

# What the client's readers and the request itself refuse has its rows in tests/client and tests/wire.
WRONG: dict[Any, list[tuple[dict[str, Any], str, str]]] = {
    completion: [
        ({"prompt": ""}, "prompt", "give a text, a list of token ids, or a list of these"),
        ({"prompt": []}, "prompt", "give a text, a list of token ids, or a list of these"),
        ({"prompt": ["a", ""]}, "prompt[1]", "give a text, or a list of token ids"),
        ({"prompt": [[1], []]}, "prompt[1]", "give a text, or a list of token ids"),
        ({"prompt": [[1], [2, -1]]}, "prompt[1][1]", "at least 0"),
        ({"prompt": ["a"] * 257}, "prompt", "has 257 prompts; give at most 256"),
        ({"prompt": [1, True]}, "prompt", "token ids"),
        ({"prompt": [1, -1]}, "prompt[1]", "at least 0"),
        ({"temperature": "hot"}, "temperature", "must be a number"),
        ({"stop": 5}, "stop", "a string or a list of strings"),
        ({"stop_token_ids": "x"}, "stop_token_ids", "a list of token ids"),
        ({"logprobs": True}, "logprobs", "must be a whole number"),
        ({"logprobs": 99}, "logprobs", "at most 20"),
        ({"logit_bias": [1]}, "logit_bias", "object of token ids"),
        ({"cache": {"no-cache": 1}}, "cache", 'give {"no-cache": true}'),
        ({"logit_bias": {"x": 1}}, "logit_bias", "strings of digits"),
        ({"logit_bias": {"9" * 5000: 1}}, "logit_bias", "strings of digits"),
        ({"metadata": "x"}, "metadata", "object whose values are strings"),
        ({"metadata": {"a": 1}}, "metadata", "object whose values are strings"),
        ({"model": 7}, "model", "as a string"),
        ({"model": "a b"}, "model", "without braces or white space"),
        ({"chat_template_kwargs": {"x": 1}}, "chat_template_kwargs", "needs messages"),
    ],
    chat: [
        ({"messages": []}, "messages", "at least one"),
        ({"messages": ["hi"]}, "messages[0]", "an object with role and content"),
        ({"messages": [{"content": "x"}]}, "messages[0].role", "system, user or assistant"),
        ({"messages": [*HELLO, {"role": "user", "content": 5}]}, "messages[1].content", "give a text"),
        (
            {"messages": [{"role": "user", "content": [PART]}]},
            "messages[0].content[0].type",
            "only text and image parts",
        ),
        (
            {"messages": [*HELLO, {"role": "a", "tool_calls": [{}]}]},
            "messages[1].tool_calls[0].id",
            "missing",
        ),
        (
            {"messages": [{"role": "a", "content": "", "tool_call_id": 7}]},
            "messages[0].tool_call_id",
            "the id",
        ),
        (
            {"messages": [*HELLO, {"role": "a", "tool_calls": [DEEP_CALL]}]},
            "messages[1].tool_calls[0].function.arguments",
            "nested more than 64 deep",
        ),
        ({"messages": [{"role": "a", "content": "x" * (2**22 + 1)}]}, "messages[0].content", "shorten it"),
        ({"chat_template_kwargs": {"a": DEEP}}, "chat_template_kwargs", "nested more than 64 deep"),
        ({"guided_json": {"multipleOf": 10**400}}, "guided_json", "use rounder numbers"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_completion_tokens", "one of the two"),
        ({"max_completion_tokens": 0}, "max_completion_tokens", "at least 1"),
        ({"top_logprobs": 5}, "top_logprobs", "needs logprobs"),
        ({"tools": [{"type": "function"}]}, "tools[0].function", "give {"),
        ({"tools": [GET, GET]}, "tools", "more than one function"),
        ({"prediction": {"type": "text", "content": "old"}}, "prediction", "content"),
        ({"response_format": "json"}, "response_format", "give"),
        ({"guided_json": "{"}, "guided_json", "is no JSON"),
        ({"guided_json": {}, "guided_regex": "a"}, "guided_regex", "beside guided_json"),
        ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern", "give exactly one of json"),
        (
            {"guided_regex": "a", "response_format": {"type": "json_object"}},
            "guided_regex",
            "beside response_",
        ),
        ({"guided_regex": "a", "min_tokens": 2}, "guided_regex", "min_tokens 2"),
        (
            {"structured_outputs": {"regex": "a"}, "response_format": {"type": "text"}, "ignore_eos": True},
            "structured_outputs",
            "ignore_eos",
        ),
    ],
}


@pytest.mark.parametrize(
    ("read", "body", "field", "problem"), [(read, *row) for read, rows in WRONG.items() for row in rows]
)
def test_what_is_wrong_is_named(read: Any, body: dict[str, Any], field: str, problem: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(**body)
    assert isinstance(caught.value, UnsupportedField) is (problem == "only text and image parts")
    assert caught.value.field == field
    assert problem in caught.value.problem
