"""Every field of the table: a done one changes the request, one without effect is told, one is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_create_params

from millstream.errors import InvalidRequest
from millstream.openai.api_endpoint import ApiEndpoint
from millstream.openai.fields.field_check import (
    MOST_IGNORED,
    check_stream_options,
    ignored_header,
    is_ignored_by_rule,
    remedy_of,
)
from millstream.openai.fields.field_table import FIELDS, MESSAGE_FIELDS, FieldRule, Treatment, names_of
from millstream.openai.name_likeness import meant_name
from millstream.openai.request_body import RequestBody, read_body
from millstream.openai.unsupported_field import UnknownField, UnsupportedField
from millstream.wire.keys import Lane

CHAT, COMPLETIONS = ApiEndpoint.CHAT, ApiEndpoint.COMPLETIONS
HELLO = [{"role": "user", "content": "hello"}]
TOOL = {"type": "function", "function": {"name": "get"}}
BASE: dict[ApiEndpoint, dict[str, Any]] = {CHAT: {"messages": HELLO}, COMPLETIONS: {"prompt": "hello"}}
BESIDE = {  # what a field needs
    "top_logprobs": {"logprobs": True},
    "tool_choice": {"tools": [TOOL]},
    "parallel_tool_calls": {"tools": [TOOL]},
    "guided_whitespace_pattern": {"guided_json": {}},
}
VALUES: dict[str, Any] = {
    "min_tokens": 2, "temperature": 0, "top_p": 0.5, "top_k": 3, "min_p": 0.1, "seed": 7, "ignore_eos": True,
    "repetition_penalty": 1.5, "presence_penalty": 1, "frequency_penalty": 1, "n": 2, "stop": "x",
    "stop_token_ids": [3], "max_tokens": 9, "logit_bias": {"5": 1}, "metadata": {"a": "b"}, "model": "other",
    "chat_template_kwargs": {"a": 1}, "cache": {"no-store": True}, "prediction": "x", "bad_words": ["x"],
    "allowed_token_ids": [1, 2], "include_stop_str_in_output": True, "skip_special_tokens": False,
    "return_token_ids": True, "truncate_prompt_tokens": 5, "thinking_token_budget": 0,
    "response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}, "guided_json": {},
    "guided_regex": "a", "guided_choice": ["a"], "guided_grammar": "start: /a/",
    "guided_whitespace_pattern": " ",
    "messages": [{"role": "user", "content": "other"}], "max_completion_tokens": 9, "top_logprobs": 2,
    "tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False, "reasoning_effort": "none",
    "continue_final_message": True, "add_generation_prompt": False, "prompt": "other",
}  # fmt: skip
LOGPROBS = {CHAT: True, COMPLETIONS: 0}
PLURALS = {  # names of other servers that differ in an s
    ("input", "inputs"), ("model", "models"), ("image_config", "images_config"),
    ("watermark", "watermarking"), ("reasoning_budget_end_tag", "reasoning_budget_end_tags"),
}  # fmt: skip


def read(endpoint: ApiEndpoint, **body: Any) -> RequestBody:
    return read_body(endpoint, BASE[endpoint] | body, lane=Lane.BATCH, tenant="")


def rules(treatment: Treatment) -> list[tuple[ApiEndpoint, str]]:
    return [(endpoint, name) for endpoint in ApiEndpoint for name in sorted(names_of(treatment, endpoint))]


def asked(rule: FieldRule) -> Any:
    return next(value for value in ("asked", 7) if rule.asks(value))


@pytest.mark.parametrize(("endpoint", "name"), rules(Treatment.DONE))
def test_a_done_field_changes_the_request(endpoint: ApiEndpoint, name: str) -> None:
    value = LOGPROBS[endpoint] if name == "logprobs" else VALUES[name]
    if (endpoint, name) == (COMPLETIONS, "chat_template_kwargs"):  # of vLLM's, and of no use
        with pytest.raises(InvalidRequest, match=r"^chat_template_kwargs: needs messages"):
            read(endpoint, **{name: value})
        return
    beside = BESIDE.get(name, {})
    one, other = read(endpoint, **beside), read(endpoint, **beside, **{name: value})
    assert (one.request, one.queue) != (other.request, other.queue)
    assert other.ignored == ()


@pytest.mark.parametrize(("endpoint", "name"), rules(Treatment.IGNORED))
def test_a_field_without_effect_is_reported(endpoint: ApiEndpoint, name: str) -> None:
    rule = FIELDS[endpoint][name]
    body = read(endpoint, **{name: asked(rule)})
    assert (body.ignored, body.request) == ((name,), read(endpoint).request)
    for nothing in (None, *rule.nothing):
        assert read(endpoint, **{name: nothing}).ignored == ()
    assert is_ignored_by_rule(name)


@pytest.mark.parametrize(("endpoint", "name"), rules(Treatment.REFUSED))
def test_a_refused_field_is_named_with_a_remedy(endpoint: ApiEndpoint, name: str) -> None:
    rule = FIELDS[endpoint][name]
    with pytest.raises(UnsupportedField) as caught:
        read(endpoint, **{name: asked(rule)})
    assert (caught.value.field, caught.value.code) == (name, "unsupported_parameter")
    assert caught.value.problem == f"not supported here; {rule.remedy}"
    assert rule.remedy
    for nothing in (None, *rule.nothing):
        body = read(endpoint, **{name: nothing})
        assert (body.ignored, body.request) == ((), read(endpoint).request)


@pytest.mark.parametrize("name", sorted(MESSAGE_FIELDS))
def test_fields_of_messages_are_done_told_or_refused(name: str) -> None:
    rule = MESSAGE_FIELDS[name]
    message = HELLO[0] | {name: asked(rule)}
    if rule.treatment is Treatment.REFUSED:
        with pytest.raises(
            UnsupportedField, match=rf"^messages\[1\]\.{name}: not supported here; "
        ) as caught:
            read(CHAT, messages=[*HELLO, message])
        assert caught.value.field == f"messages[1].{name}"
    elif rule.treatment is Treatment.IGNORED:
        assert read(CHAT, messages=[*HELLO, message, message]).ignored == (f"messages.{name}",)
        assert is_ignored_by_rule(f"messages.{name}")


def openai_fields(module: Any) -> Iterator[str]:
    for kind in ("Base", "Streaming", "NonStreaming"):
        yield from getattr(module, f"CompletionCreateParams{kind}").__annotations__


def test_the_table_has_all_fields_of_openai() -> None:
    chat, completions = set(openai_fields(chat_create_params)), set(openai_fields(completion_create_params))
    assert "messages" in chat
    assert "prompt" in completions
    assert chat - FIELDS[CHAT].keys() == completions - FIELDS[COMPLETIONS].keys() == set()
    assert FIELDS[CHAT].keys() == FIELDS[COMPLETIONS].keys()


def test_no_name_of_the_table_is_like_another() -> None:
    """So a field that a server will have is not taken for a misspelt one; but for plurals."""
    names = frozenset(FIELDS[CHAT])
    like = {(name, meant) for name in names if (meant := meant_name(name, names - {name}))}
    assert {tuple(sorted(pair)) for pair in like} == PLURALS
    assert not any(meant_name(name, frozenset(MESSAGE_FIELDS) - {name}) for name in MESSAGE_FIELDS)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("temprature", "temperature"), ("max_token", "max_tokens"), ("maxTokens", "max_tokens"),
        ("top-p", "top_p"), ("stops", "stop"), ("respones_format", "response_format"),
        ("mesages", "messages"), ("seeds", "seed"),
        ("maxtokens", "max_tokens"), ("toolChoice", "tool_choice"), ("tempo", None),
        ("mode", None), ("traces", None), ("users", None), ("top_b", None),
        ("prompt_id", None), ("id", None),
        ("message_id", None), ("session", None), ("", None), ("_", None), ("x" * 10**6, None),
    ],
)  # fmt: skip
def test_a_misspelt_name_is_refused_and_another_told(name: str, meant: str | None) -> None:
    if meant is None:
        assert read(CHAT, **{name: 1}).ignored == (name,)
        return
    with pytest.raises(UnknownField) as caught:
        read(CHAT, **{name: 1})
    assert (caught.value.field, caught.value.code) == (name, "unknown_parameter")
    assert caught.value.problem == f"no such field; did you mean {meant}?"


def test_a_misspelt_field_of_a_message_is_refused() -> None:
    with pytest.raises(
        UnknownField, match=r"^messages\[0\]\.contents: no such field; did you mean content\?"
    ):
        read(CHAT, messages=[HELLO[0] | {"contents": "x"}])
    body = read(CHAT, messages=[HELLO[0] | {"mood": "x", "weight": None}])
    assert body.ignored == ("messages.mood",)
    assert not is_ignored_by_rule("messages.mood")


@pytest.mark.parametrize(
    ("tool", "field", "meant"),
    [
        ({"functon": {"name": "get"}}, "functon", "function"),
        ({"function": {"name": "get", "paramters": {}}}, "function.paramters", "parameters"),
    ],
)
def test_a_misspelt_field_of_a_tool_is_refused(tool: dict[str, Any], field: str, meant: str) -> None:
    with pytest.raises(UnknownField) as caught:
        read(CHAT, tools=[TOOL, {"type": "function"} | tool])
    assert caught.value.field == f"tools[1].{field}"
    assert caught.value.problem == f"no such field; did you mean {meant}?"


def test_names_inside_of_fields_are_ignored_by_rule() -> None:
    part = {"type": "text", "text": "x", "cache_control": 1, "refusal": "x"}
    function = {"name": "f", "cache_control": 1, "defer_loading": 1}
    tool = {"type": "function", "function": function, "cache_control": 1, "defer_loading": 1}
    ignored = read(CHAT, messages=[HELLO[0] | {"content": [part]}], tools=[tool]).ignored
    options = check_stream_options({"include_obfuscation": True, "continuous_usage_stats": True})
    assert len(ignored + options) == 8
    assert [name for name in ignored + options if not is_ignored_by_rule(name)] == [
        "messages.content.refusal"
    ]


def test_a_body_of_many_unknown_fields_is_refused() -> None:
    many = {f"x{place}y": 1 for place in range(MOST_IGNORED)}
    assert len(read(CHAT, **many).ignored) == MOST_IGNORED
    with pytest.raises(UnknownField, match=r"^one_more: .*leave them out"):
        read(CHAT, **many, one_more=1)


def test_the_header_is_plain_text() -> None:
    shown = ignored_header(("user", "a, b\r\nc", "größe", "x" * 100))["x-millstream-ignored"]
    assert shown == f"user, a__b__c, gr__e, {'x' * 64}"
    assert ignored_header(()) == {}


def test_a_remedy_is_found_by_the_name_alone() -> None:
    assert remedy_of("regex") == "use structured_outputs.regex"
    assert remedy_of("max_completion_tokens") == "use max_tokens"
    assert remedy_of("user") == remedy_of("tempo") == ""
