"""From arguments to a request: what is taken, and for all else an error naming field and remedy."""

from __future__ import annotations

import math
from typing import Any

import pytest

from millstream.client.session.options import ClientOptions
from millstream.client.submit.request_cost import USUAL_OUTPUT
from millstream.client.submit.requests import JobFields, SamplingFields, draft
from millstream.errors import InvalidRequest
from millstream.openai.fields.value_forms import TOP_TOKEN_ONLY
from millstream.wire.keys import job_id_of, shard_of
from millstream.wire.messages import codec
from millstream.wire.messages.job_messages import ChatMessage, Request
from millstream.wire.messages.sampling import SamplingParams

NOW_MS = 1_700_000_000_000


def request(**fields: Any) -> Request:
    return codec.decode(Request, draft(fields, NOW_MS, 8 * 1024**2).payload)


def test_all_that_a_request_may_say() -> None:
    fields: dict[str, Any] = {
        "prompt": "Hello\n世界 🦔", "max_tokens": 5, "temperature": 0, "stop": ["\n", "END"],
        "logit_bias": {5: 1.5, "7": -2.0}, "logprobs": True, "top_logprobs": 3, "lane": "interactive",
        "deadline_s": 1.5, "tenant": "acme", "metadata": {"row": "7"}, "stream": True,
        "traceparent": "00-ab-cd-01",
    }  # fmt: skip
    made = request(**fields)
    assert made.prompt == fields["prompt"]
    assert made.sampling.stop == ("\n", "END")
    assert made.sampling.logit_bias == {5: 1.5, 7: -2.0}
    assert made.deadline_ms == NOW_MS + 1500
    assert (made.lane, made.tenant, made.metadata, made.stream) == ("interactive", "acme", {"row": "7"}, True)


def test_messages_and_token_ids_in_place_of_a_prompt() -> None:
    chat = [{"role": "system", "content": ""}, ChatMessage(role="user", content="Hi")]
    made = request(messages=chat)
    assert made.messages == (ChatMessage(role="system", content=""), ChatMessage(role="user", content="Hi"))
    assert request(token_ids=range(3)).token_ids == (0, 1, 2)


def test_none_is_as_good_as_absent() -> None:
    nothing = dict.fromkeys([*SamplingFields.__annotations__, *JobFields.__annotations__])
    assert request(**nothing | {"prompt": "a"}) == request(prompt="a")


def test_keywords_go_before_sampling_params() -> None:
    base = SamplingParams(max_tokens=5, temperature=0.5)
    made = request(prompt="a", sampling=base, max_tokens=7)
    assert (made.sampling.max_tokens, made.sampling.temperature) == (7, 0.5)
    plain = draft({"prompt": "a", "max_tokens": 7, "temperature": 0.5}, NOW_MS, 1000)
    assert draft({"prompt": "a", "sampling": base, "max_tokens": 7}, NOW_MS, 1000).digest == plain.digest


def test_a_keyword_turns_off_what_sampling_sets() -> None:
    base = SamplingParams(stop=("x",), thinking_token_budget=5)
    made = request(prompt="p", sampling=base, stop="", thinking_token_budget=-1).sampling
    assert (made.stop, made.thinking_token_budget) == ((), None)
    off = draft({"prompt": "p", "stop": "", "thinking_token_budget": -1}, NOW_MS, 1000)
    assert off.digest == draft({"prompt": "p"}, NOW_MS, 1000).digest


@pytest.mark.parametrize(
    ("more", "name", "problem"),
    [
        ({"conten": "hi"}, "conten", "did you mean content?"),
        ({"mood": "x"}, "mood", "leave it out"),
        ({5: "x"}, "5", "leave it out"),
        ({"images": ["x"]}, "images", "use image_url parts"),
        ({"prefix": True}, "prefix", "use continue_final_message"),
        ({"thinking": "Hm."}, "thinking", "use reasoning_content"),
    ],
)
def test_the_names_of_a_message_are_checked(more: dict[Any, Any], name: str, problem: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        request(messages=[{"role": "user"}, {"role": "user", **more}])
    assert caught.value.field == f"messages[1].{name}"
    assert problem in caught.value.problem


def test_an_answer_is_taken_as_a_message() -> None:
    answer = {"role": "assistant", "content": "7", "annotations": [5], "id": "m", "audio": None, "x": None}
    assert request(messages=[answer]).messages == (ChatMessage(role="assistant", content="7"),)


def test_a_ready_request_is_taken_as_it_is() -> None:
    made = Request(prompt="a", tenant="acme", sampling=SamplingParams(max_tokens=3))
    assert request(request=made, id="x") == made
    assert request(request=made, deadline_s=1).deadline_ms == NOW_MS + 1000


def test_every_sampling_parameter_is_a_keyword() -> None:
    assert SamplingFields.__annotations__.keys() == SamplingParams.model_fields.keys()


def chat_parts(*parts: dict[str, str]) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


def chat(**kwargs: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "Hi"}], "chat_template_kwargs": kwargs}


def nested(depth: int) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for _ in range(depth - 1):
        made = {"a": made}
    return made


def test_values_are_taken_as_other_clients_write_them() -> None:
    made = request(prompt="a", top_k=-1, top_p=0, stop="", max_tokens=5.0, thinking_token_budget=-1)
    assert made.sampling == SamplingParams(top_k=0, top_p=TOP_TOKEN_ONLY, max_tokens=5)
    assert made.version == 1
    assert request(prompt="a", stop="\n").sampling.stop == ("\n",)


def test_the_fields_of_vllm_are_keywords() -> None:
    turns = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "Once P"}]
    made = request(
        messages=turns, continue_final_message=True, reasoning_effort="low", return_token_ids=True,
        bad_words=["x"], allowed_token_ids=[1, 2], truncate_prompt_tokens=7, skip_special_tokens=False,
    )  # fmt: skip
    assert (made.continue_final_message, made.add_generation_prompt) == (True, False)
    assert (made.reasoning_effort, made.return_token_ids, made.version) == ("low", True, 5)
    assert (made.sampling.bad_words, made.sampling.allowed_token_ids) == (("x",), (1, 2))


@pytest.mark.parametrize(
    ("fields", "version"),
    [
        ({"n": 16, "stop": ["x" * 256] * 16}, 1),
        ({"n": 17}, 5), ({"stop": ["x"] * 17}, 5), ({"stop": "x" * 257}, 5),
        ({"n": 128, "stop": [chr(97 + place % 26) * 1024 for place in range(64)]}, 5),
    ],
)  # fmt: skip
def test_wider_bounds_need_version_5(fields: dict[str, Any], version: int) -> None:
    assert request(prompt="a", **fields).version == version


def test_a_request_is_of_the_lowest_version_that_has_its_fields() -> None:
    """And what changes the rendered text changes the digest, however its keys are ordered."""
    plain, asked = (
        draft(chat(**kwargs), NOW_MS, 1000) for kwargs in ({}, {"a": {"x": 1, "y": None}, "b": [0.5]})
    )
    assert (plain.version, asked.version) == (1, 2)
    assert codec.decode(Request, plain.payload).version == 1
    assert codec.decode(Request, asked.payload).version == 2
    again = draft(chat(b=[0.5], a={"y": None, "x": 1}), NOW_MS, 1000)
    assert again.digest == asked.digest != plain.digest
    assert plain.digest == draft({"messages": [{"role": "user", "content": "Hi"}]}, NOW_MS, 1000).digest
    assert codec.decode(Request, asked.payload).chat_template_kwargs == {"a": {"x": 1, "y": None}, "b": [0.5]}


@pytest.mark.parametrize(
    ("prediction", "text"),
    [
        ("old text", "old text"),
        ({"type": "content", "content": "old text"}, "old text"),
        ({"type": "content", "content": [{"type": "text", "text": t} for t in ("old ", "text")]}, "old text"),
        ({"type": "content", "content": ""}, None),
        (None, None),
    ],
)
def test_a_prediction_changes_neither_version_nor_digest(prediction: Any, text: str | None) -> None:
    """Workers that do not know it give the same answer: the job is the same, with whatever prediction."""
    made, plain = (draft({"prompt": "a", **more}, NOW_MS, 1000) for more in ({"prediction": prediction}, {}))
    assert codec.decode(Request, made.payload).prediction == text
    assert (made.version, made.digest, made.cost) == (1, plain.digest, plain.cost)


# What the request itself refuses has its rows in tests/wire; here are one of each kind, and the client's own.
INVALID: list[tuple[dict[str, Any], str, str]] = [
    ({}, "prompt", "exactly one of prompt, messages and token_ids"),
    ({"prompt": ["a", "b"]}, "prompt", "submit_many takes many jobs, one for each prompt"),
    ({"messages": [chat_parts({"type": "text"})]}, "messages[0].content[0].text", "give a text"),
    (
        {"messages": [chat_parts({"type": "video_url"})]},
        "messages[0].content[0].type",
        "only text and image parts",
    ),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "give a text"),
    ({"messages": ["hi"]}, "messages[0]", "an object with role and content"),
    ({"prompt": "a", "id": "a b"}, "id", "A-Z"),
    ({"prompt": "a", "id": 7}, "id", "string"),
    ({"prompt": "a", "lane": "express"}, "lane", "interactive, batch"),
    ({"prompt": "a", "deadline_s": 0}, "deadline_s", "above 0"),
    ({"prompt": "a", "deadline_s": math.nan}, "deadline_s", "above 0"),
    ({"prompt": "a", "deadline_s": True}, "deadline_s", "seconds"),
    ({"prompt": "a", "metadata": {"n": 5}}, "metadata.n", "string"),
    ({"prompt": "a", "max_tokens": "20"}, "max_tokens", "whole number"),
    ({"prompt": "a", "logit_bias": {"x": 1.0}}, "logit_bias.x", "whole number"),
    ({"prompt": "a", "logit_bias": {"9" * 5000: 1.0}}, f"logit_bias.{'9' * 80}", "whole number"),
    ({"prompt": "a", "deadline_s": 10**400}, "deadline_s", "ten years"),
    ({"prompt": "a", "min_tokens": 5, "max_tokens": 3}, "min_tokens", "above max_tokens 3"),
    ({"prompt": "a", "max_token": 5}, "max_token", "no such parameter; did you mean max_tokens?"),
    ({"prompt": "a", "tempo": 5}, "tempo", "see millstream.SamplingParams"),
    ({"prompt": "a", "regex": "x"}, "regex", "no such parameter; use structured_outputs.regex"),
    ({"prompt": "a", "reasoning_effort": "much"}, "reasoning_effort", "must be one of none, minimal"),
    ({"prompt": "a", "reasoning_effort": "low"}, "reasoning_effort", "needs messages"),
    ({"prompt": "a", "return_token_ids": 1}, "return_token_ids", "must be true or false"),
    ({"prompt": "a", "sampling": {"max_tokens": 5}}, "sampling", "SamplingParams"),
    ({"request": {"prompt": "a"}}, "request", "give a Request"),
    ({"request": Request(prompt="a"), "lane": "batch"}, "request", "beside it only id"),
    (chat(tools=[]), "chat_template_kwargs", "tools cannot be set by a request"),
    (chat(x="ä" * 2048), "chat_template_kwargs", "may take 4096 bytes as JSON, and takes more"),
    (chat(x=[math.nan]), "chat_template_kwargs", "cannot carry"),
    (chat(x={1: 2}), "chat_template_kwargs", "cannot carry"),
    (chat(x=2**64), "chat_template_kwargs", "cannot carry"),
    (chat(x=nested(64)), "chat_template_kwargs", "nested more than 64 deep"),
    (chat(x=nested(300)), "chat_template_kwargs", "nested more than 64 deep"),  # pydantic writes no such one
    (chat(x=(((([[[]]],),),),) * 400), "chat_template_kwargs", "may take 4096"),
    ({"prompt": "a", "chat_template_kwargs": {"x": 1}}, "chat_template_kwargs", "needs messages"),
    ({**chat(), "chat_template_kwargs": [1]}, "chat_template_kwargs", "must be a map"),
    ({"prompt": "a", "add_generation_prompt": False}, "add_generation_prompt", "needs messages"),
    ({"token_ids": [1], "continue_final_message": True}, "continue_final_message", "needs messages"),
    ({"prompt": "a", "prediction": {"type": "text"}}, "prediction", '{"type": "content"'),
    ({"prompt": "a", "prediction": ["b"]}, "prediction", '{"type": "content"'),
    ({"prompt": "a", "prediction": {"type": "content"}}, "prediction.content", "give a text"),
    ({"prompt": "a", "prediction": {"type": "content", "text": "b"}}, "prediction.text", "leave it out"),
    ({"prompt": "a", "prediction": "\ud800"}, "prediction", "Unicode"),
    ({"prompt": "a", "prediction": "é" * 200_000}, "prediction", "takes 400000 bytes and may take 262144"),
    ({"prompt": "a" * 1000}, "prompt", "may take 1000; shorten it"),
    ({"token_ids": [70_000] * 300}, "token_ids", "may take 1000; shorten it"),
]


SHORT = {"role": "user", "content": "ppp"}
CALL = {"id": "c", "type": "function", "function": {"name": "n" * 256, "arguments": f'["{"x" * 396}"]'}}
CALLING = [
    {"role": "user", "content": "p"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": "oooo", "tool_call_id": "c"},
]
TOOL = {"type": "function", "function": {"name": "f", "description": "d" * 40}}


@pytest.mark.parametrize(
    ("fields", "cost"),
    [
        ({"token_ids": [1, 2, 3], "max_tokens": 5}, 8),
        ({"prompt": "p" * 400, "max_tokens": 5}, 105),
        ({"prompt": "\u00e4" * 400, "max_tokens": 5, "n": 3}, 215),
        ({"messages": [{"role": "user", "content": "p" * 40}] * 2, "max_tokens": 1}, 31),
        ({"messages": CALLING, "max_tokens": 1}, 251),
        ({"messages": [SHORT], "max_tokens": 1, "tools": [TOOL]}, 21),
        ({"messages": [SHORT], "max_tokens": 1, "chat_template_kwargs": {"a": "x" * 36}}, 18),
        ({"messages": [SHORT | {"name": "n" * 20, "reasoning": "r" * 40}], "max_tokens": 1}, 21),
        ({"prompt": "p" * 400, "max_tokens": 5, "truncate_prompt_tokens": 7}, 12),
        ({"prompt": "p"}, USUAL_OUTPUT),
        ({"prompt": "p", "max_tokens": 1}, 1),
    ],
)
def test_what_a_request_is_counted_as(fields: dict[str, Any], cost: int) -> None:
    made = draft({**fields, "tenant": "t"}, NOW_MS, 8 * 1024**2)
    assert (made.tenant, made.cost) == ("t", cost)


@pytest.mark.parametrize(("fields", "field", "problem"), INVALID, ids=lambda value: str(value)[:40])
def test_what_is_wrong_is_named(fields: dict[str, Any], field: str, problem: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        draft(fields, NOW_MS, 1000)
    assert caught.value.field == field
    assert problem in caught.value.problem
    assert str(caught.value).startswith(f"{field[:197]}...: " if len(field) > 200 else f"{field}: ")
    assert len(str(caught.value)) < 500


def test_a_number_that_python_does_not_write() -> None:
    with pytest.raises(InvalidRequest, match=r"seed: .*of type int that is too long to show"):
        draft({"prompt": "a", "seed": 10**5000}, NOW_MS, 1000)


def test_values_that_are_nested_too_deeply() -> None:
    for depth, problem in ((600, "nested more than 64 deep"), (20_000, "may take 4096 bytes")):
        with pytest.raises(InvalidRequest, match=problem):
            draft(chat(x=nested(depth)), NOW_MS, 1000)
    assert draft(chat(x=nested(63)), NOW_MS, 1000).version == 2


def test_an_item_that_is_no_mapping() -> None:
    with pytest.raises(InvalidRequest, match="as a mapping"):
        draft("Hello", NOW_MS, 1000)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_entries", 0), ("max_entries", "9"), ("connections", 1.5), ("timeout_s", None),
        ("shards", True), ("shards", 1025), ("name", 5), ("max_bytes", -1), ("max_payload_bytes", 0),
        ("max_payload_bytes", 17 * 1024**2), ("timeout_s", 0.0), ("timeout_s", math.inf),
        ("reconnect_s", math.inf), ("result_ttl_s", math.nan), ("result_ttl_s", math.inf),
        ("result_ttl_s", 1e12), ("reconnect_s", -1.0), ("reconnect_s", math.nan), ("connections", 0),
        ("stream_buffer", 0), ("shards", 0), ("name", "two words"), ("name", ""),
    ],
)  # fmt: skip
def test_options_that_cannot_work(field: str, value: Any) -> None:
    with pytest.raises(InvalidRequest, match=f"^{field}: "):
        ClientOptions(**{field: value})


def test_the_id_of_a_cacheable_request_follows_its_content() -> None:
    """In a queue of several shards that keeps results. A name stays what it is."""

    def shards(**fields: Any) -> set[int]:
        ids = [draft({"prompt": "a", **fields}, NOW_MS, 1000, 64).own_id for _ in range(20)]
        assert len(set(ids)) == 20
        return {shard_of(job_id_of(own_id, 64)) for own_id in ids}

    exact = shards(temperature=0)
    assert len(exact) == 1
    assert shards(temperature=0, tenant="acme", metadata={"row": "7"}, cache="no-cache") == exact
    assert len(shards(seed=1)) == 1
    assert shards(seed=1) != shards(seed=2)
    for sampled in ({}, {"temperature": 0.5}, {"temperature": 0, "cache": "no-store"}):
        assert len(shards(**sampled)) > 1
    named = {"prompt": "a", "temperature": 0, "id": "mine"}
    assert draft(named, NOW_MS, 1000, 64).own_id == "mine"
