"""Calls of tools and thoughts, through the real queue, worker and engine."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field
from support.models import tokenizers
from support.models.spelling import CALLING_TEMPLATE, spelling_checkpoint, with_words
from support.servers.servers import Server
from support.workers.counting_worker import worker_process

from millstream import Client, JobFailed, Transcript

SETTINGS: dict[str, Any] = {"dtype": "float32", "device": "cpu", "threads": 1, "kv_memory": "4MiB"}
ASK = [{"role": "user", "content": "the quick brown fox"}]


class Order(BaseModel):
    grain: Literal["oats", "rye"]
    sacks: int = Field(ge=0, le=99)


def function(name: str, parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": name, "parameters": parameters}}


TOOLS = [function("order", Order), function("close", None)]
NAMED = {"type": "function", "function": {"name": "order"}}


def token(text: str) -> int:
    [one] = with_words(tokenizers.build("byte-level")).encode(text).ids
    return one


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    return spelling_checkpoint(folder, words=True, template=CALLING_TEMPLATE, max_position_embeddings=2048)


@pytest.fixture(scope="module")
def plain_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return spelling_checkpoint(tmp_path_factory.mktemp("models"), max_position_embeddings=2048)


def test_tools_are_called_or_the_answer_says_why_not(valkey: Server, model: Path) -> None:
    asked: dict[str, Any] = {
        "messages": ASK, "tools": TOOLS, "temperature": 1.5, "max_tokens": 300,
        "chat_template_kwargs": {"enable_thinking": False},
    }  # fmt: skip
    never = {"logit_bias": {token("<tool_call>"): -100}}
    with Client(valkey.url) as client, worker_process(valkey, str(model), engine_command="", **SETTINGS):
        named = client.submit(**asked, tool_choice=NAMED, n=3)
        required = client.submit(**asked, tool_choice="required", parallel_tool_calls=False, n=4)
        cut = client.submit(**asked | {"max_tokens": 20}, tool_choice=NAMED)
        calling = client.submit(**asked, parallel_tool_calls=False, logit_bias={token("<tool_call>"): 9})
        talking = client.submit(**asked | {"max_tokens": 30}, **never, ignore_eos=False)
        none = client.submit(**asked | {"max_tokens": 9}, tool_choice="none")
        wrong = client.submit(**asked | {"tools": [function("odd", {"not": {}})]}, tool_choice="required")

        for choice in client.wait(named.id, timeout_s=60).choices:
            [call] = choice.tool_calls
            assert call.function.name == "order"
            assert Order.model_validate_json(call.function.arguments)
            assert (choice.complete, choice.finish_reason, choice.content) == (True, "stop", None)
            assert call.function.arguments in choice.text

        choices = client.wait(required.id, timeout_s=60).choices
        names = [call.function.name for choice in choices for call in choice.tool_calls]
        assert len(names) == 4
        assert set(names) <= {"order", "close"}
        assert {choice.finish_reason for choice in choices} == {"tool_calls"}
        assert len({call.id for choice in choices for call in choice.tool_calls}) == 4

        [choice] = client.wait(cut.id, timeout_s=60).choices
        assert (choice.complete, choice.finish_reason, choice.tool_calls) == (False, "length", ())

        [choice] = client.wait(calling.id, timeout_s=60).choices
        assert (choice.complete, bool(choice.tool_calls)) in ((True, True), (False, False))
        [choice] = client.wait(talking.id, timeout_s=60).choices
        assert (choice.complete, choice.tool_calls, choice.content) == (None, (), choice.text)
        [choice] = client.wait(none.id, timeout_s=60).choices
        assert (choice.complete, choice.tool_calls) == (None, ())

        with pytest.raises(JobFailed, match=r"the parameters of odd") as failed:
            client.wait(wrong.id, timeout_s=60)
        assert failed.value.result.error.field == "tools"


@pytest.mark.slow
def test_a_thought_is_apart_from_the_answer(valkey: Server, model: Path) -> None:
    """With a format and without; a prompt that is no chat is continued as it is."""
    ends: dict[str, Any] = {"logit_bias": {token("</think>"): 5}, "temperature": 1.5, "max_tokens": 200}
    thinks = {"chat_template_kwargs": {"enable_thinking": True}}
    not_now = {"chat_template_kwargs": {"enable_thinking": False}}
    plate = {"structured_outputs": {"regex": "[A-C]{2}-[0-9]{3}"}}
    with Client(valkey.url) as client, worker_process(valkey, str(model), engine_command="", **SETTINGS):
        formed = client.submit(messages=ASK, **ends, **thinks, **plate, n=3)
        free = client.submit(messages=ASK, **ends, **thinks, stream=True)
        calls = client.submit(messages=ASK, **ends, **thinks, tools=TOOLS, tool_choice=NAMED)
        over = client.submit(messages=ASK, **ends, **not_now, **plate)
        cut = client.submit(
            messages=ASK, max_tokens=9, logit_bias={token("</think>"): -100}, **thinks, **plate
        )
        plain = client.submit(
            "answer: <think>\n", **ends | {"logit_bias": {token("</think>"): 100}, "max_tokens": 3}
        )

        seen = Transcript()
        thought = ""
        for event in client.stream(free.id):
            seen.add(event)
            thought += getattr(event, "reasoning_content", "")
        [choice] = client.wait(free.id, timeout_s=60).choices
        assert (choice.text, choice.reasoning_content) == (seen.text(), thought)
        assert thought
        assert "</think>" not in thought
        assert choice.complete is None

        for choice in client.wait(formed.id, timeout_s=60).choices:
            assert choice.complete, choice
            assert (len(choice.text), "</think>" in choice.reasoning_content) == (6, False)
            assert token("</think>") in choice.token_ids

        [choice] = client.wait(calls.id, timeout_s=60).choices
        assert (choice.complete, len(choice.tool_calls), choice.text[:11]) == (True, 1, "<tool_call>")
        [choice] = client.wait(over.id, timeout_s=60).choices
        assert (choice.complete, choice.reasoning_content, len(choice.text)) == (True, "", 6)
        [choice] = client.wait(cut.id, timeout_s=60).choices
        assert (choice.complete, choice.finish_reason, choice.text) == (False, "length", "")
        assert choice.reasoning_content
        [choice] = client.wait(plain.id, timeout_s=60).choices
        assert (choice.text, choice.reasoning_content) == ("</think>" * 3, "")


@pytest.mark.slow
def test_a_model_without_tools_calls_them_where_it_must(valkey: Server, plain_model: Path) -> None:
    """Its template shows none: they are described in the system message. By itself it would call nothing."""
    asked: dict[str, Any] = {"tools": TOOLS, "temperature": 1.5, "max_tokens": 300}
    with (
        Client(valkey.url) as client,
        worker_process(valkey, str(plain_model), engine_command="", **SETTINGS),
    ):
        first = client.wait(client.submit(messages=ASK, **asked, tool_choice=NAMED).id, timeout_s=60)
        [call] = first.choices[0].tool_calls
        answer = {"role": "assistant", "content": None, "tool_calls": [call]}
        outcome = {"role": "tool", "tool_call_id": call.id, "content": "done"}
        more = client.submit(messages=[*ASK, answer, outcome], **asked, tool_choice="none")
        assert client.wait(more.id, timeout_s=60).usage.prompt_tokens > first.usage.prompt_tokens
        with pytest.raises(
            JobFailed, match=r"tool_choice: .*does not write calls.*choose \"required\""
        ) as failed:
            client.wait(client.submit(messages=ASK, **asked).id, timeout_s=60)
        error = failed.value.result.error
        assert (error.code, error.field) == ("bad_request", "tool_choice")


@pytest.mark.slow
def test_a_killed_workers_thought_and_calls_are_those_of_another(valkey: Server, model: Path) -> None:
    many = {"type": "array", "items": {"enum": ["flour", "bran", "oats"]}, "minItems": 40, "maxItems": 40}
    closed = {"type": "object", "required": ["l"], "additionalProperties": False}
    tool = function("order", {**closed, "properties": {"l": many}})
    options: dict[str, Any] = {
        "messages": ASK, "tools": [tool], "tool_choice": "required", "parallel_tool_calls": False, "seed": 5,
        "temperature": 1.5, "logit_bias": {token("</think>"): 4},
        "chat_template_kwargs": {"enable_thinking": True},
    }  # fmt: skip
    with Client(valkey.url) as client:
        job = client.submit(**options, stream=True)
        with worker_process(valkey, str(model), engine_command="", **SETTINGS) as first:
            for number, _ in enumerate(client.stream(job.id)):
                if number == 5:
                    os.kill(first.pid, signal.SIGKILL)
                    break
        with worker_process(valkey, str(model), engine_command="", lease_s=2, **SETTINGS):
            killed = client.wait(job.id, timeout_s=90)
            whole = client.wait(client.submit(**options).id, timeout_s=60)
    assert killed.attempts == 2
    [one], [other] = killed.choices, whole.choices
    assert (one.text, one.reasoning_content, one.complete) == (other.text, other.reasoning_content, True)
    assert len(json.loads(one.tool_calls[0].function.arguments)["l"]) == 40
    assert one.tool_calls[0].function == other.tool_calls[0].function
