"""Answers that fit a format, calls of tools and thoughts, through the real queue, worker and engine."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field
from support.http import fetch
from support.models import tokenizers
from support.models.spelling import CALLING_TEMPLATE, spelling_checkpoint, with_words
from support.servers.servers import Server, free_port
from support.workers.counting_worker import REAL, worker_process

from millstream import Client, IncompleteAnswer, JobFailed, Transcript
from millstream.wire.messages.choices import TokenLogprob
from millstream.wire.messages.sampling import SamplingParams

pytestmark = pytest.mark.xdist_group("answers")  # one worker for all

ASK = [{"role": "user", "content": "the quick brown fox"}]
PORT = free_port()  # of the metrics


class Invoice(BaseModel):
    sender: str = Field(max_length=8)
    total: int = Field(ge=0, le=999)
    currency: Literal["EUR", "CHF"]
    items: list[Literal["flour", "bran"]] = Field(max_length=3)


class Order(BaseModel):
    grain: Literal["oats", "rye"]
    sacks: int = Field(ge=0, le=99)


def function(name: str, parameters: Any, **more: Any) -> dict[str, Any]:
    own = {"name": name, "description": name, "parameters": parameters, **more}
    return {"type": "function", "function": own}


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
def served(model: Path) -> Iterator[Server]:
    """With a queue that a worker serves, for all tests that do it no harm."""
    with (
        Server("valkey") as server,
        worker_process(server, str(model), metrics_port=PORT, result_cache=2**20, **REAL),
    ):
        yield server


@pytest.fixture(scope="module")
def client(served: Server) -> Iterator[Client]:
    with Client(served.url) as made:
        yield made


def test_answers_fit_or_say_that_they_do_not(client: Client) -> None:
    before = scraped()
    question: dict[str, Any] = {"prompt": "the quick brown fox", "temperature": 1.5}
    invoices = client.submit(**question, response_format=Invoice, n=3, max_tokens=300)
    plate = client.submit(**question, structured_outputs={"regex": "[D-F]{2}-[0-9]{3}"}, logprobs=True)
    cut = client.submit(**question, response_format=Invoice, max_tokens=5)
    stopped = client.submit(**question, structured_outputs={"choice": ["fox dog"]}, stop=["dog"])
    wrong = client.submit(**question, structured_outputs={"regex": "(a"})
    free = client.submit(**question, max_tokens=5)

    result = client.wait(invoices.id, timeout_s=60)
    assert all(isinstance(choice.parse(Invoice), Invoice) for choice in result.choices)
    assert [choice.complete for choice in result.choices] == [True] * 3

    [choice] = client.wait(plate.id, timeout_s=60).choices
    assert (choice.complete, choice.finish_reason) == (True, "stop")
    assert len(choice.logprobs or ()) == len(choice.token_ids)

    short = client.wait(cut.id, timeout_s=60)
    assert (short.choices[0].complete, short.choices[0].finish_reason) == (False, "length")
    with pytest.raises(IncompleteAnswer):
        short.parse(Invoice)

    [choice] = client.wait(stopped.id, timeout_s=60).choices
    assert (choice.text, choice.complete, choice.finish_reason) == ("fox ", False, "stop")

    with pytest.raises(JobFailed, match="regex parse error") as failed:
        client.wait(wrong.id, timeout_s=60)
    error = failed.value.result.error
    assert (error.code, error.field) == ("bad_request", "response_format")
    plain = client.wait(free.id, timeout_s=60)
    assert (plain.choices[0].complete, plain.timing.compiled_ms) == (None, None)

    times, status = result.timing, client.status(invoices.id)
    assert times.started_ms <= times.compiled_ms <= times.admitted_ms
    assert status.compiled_ms == times.compiled_ms
    counted = {name: value - before.get(name, 0) for name, value in scraped().items()}
    assert counted["request_grammar_wait_seconds_count"] == 4
    assert (counted["grammars_compiled_total"], counted["grammars_reused_total"]) == (3, 1)
    assert counted["grammar_seconds_total"] > 0
    assert counted["masked_rows_total"] > 0 < counted["forced_tokens_total"]
    assert scraped()["grammars_waiting"] == 0


def scraped() -> dict[str, float]:
    found = re.findall(r"^millstream_(\w+)\{queue=\"default\"\} (\S+)$", fetch(PORT)[1], re.MULTILINE)
    return {name: float(value) for name, value in found}


def test_tools_are_called_or_the_answer_says_why_not(client: Client) -> None:
    asked: dict[str, Any] = {
        "messages": ASK, "tools": TOOLS, "temperature": 1.5, "max_tokens": 300,
        "chat_template_kwargs": {"enable_thinking": False},
    }  # fmt: skip
    never = {"logit_bias": {token("<tool_call>"): -100}}
    named = client.submit(**asked, tool_choice=NAMED, n=3)
    required = client.submit(**asked, tool_choice="required", parallel_tool_calls=False, n=4)
    cut = client.submit(**asked | {"max_tokens": 20}, tool_choice=NAMED, stream=True)
    either = client.submit(**asked, response_format=Order, n=8)
    calling = client.submit(**asked, parallel_tool_calls=False, logit_bias={token("<tool_call>"): 9})
    talking = client.submit(**asked | {"max_tokens": 30}, **never, ignore_eos=False)
    none = client.submit(**asked | {"max_tokens": 9}, tool_choice="none")
    wrong = client.submit(
        **asked | {"tools": [function("odd", {"not": {}}, strict=True)]}, tool_choice="required"
    )

    for choice in client.wait(named.id, timeout_s=60).choices:
        [call] = choice.tool_calls
        assert call.function.name == "order"
        assert Order.model_validate_json(call.function.arguments)
        assert (choice.complete, choice.finish_reason, choice.content) == (True, "stop", None)
        assert choice.text == ""

    choices = client.wait(required.id, timeout_s=60).choices
    names = [call.function.name for choice in choices for call in choice.tool_calls]
    assert len(names) == 4
    assert set(names) <= {"order", "close"}
    assert {choice.finish_reason for choice in choices} == {"tool_calls"}
    assert len({call.id for choice in choices for call in choice.tool_calls}) == 4

    [choice] = client.wait(cut.id, timeout_s=60).choices
    assert (choice.complete, choice.finish_reason) == (False, "length")
    assert [call.function.name for call in choice.tool_calls] in ([], ["order"])
    seen = Transcript()
    for event in client.stream(cut.id):
        seen.add(event)
    assert (seen.tool_calls(), seen.text()) == (choice.tool_calls, choice.text)

    for choice in client.wait(either.id, timeout_s=60).choices:
        assert "<tool_call>" not in choice.text
        assert bool(choice.text) != bool(choice.tool_calls)
        assert not choice.complete or choice.tool_calls or choice.parse(Order)

    [choice] = client.wait(calling.id, timeout_s=60).choices
    assert (choice.complete, bool(choice.tool_calls)) in ((True, True), (False, False), (False, True))
    [choice] = client.wait(talking.id, timeout_s=60).choices
    assert (choice.complete, choice.tool_calls, choice.content) == (None, (), choice.text)
    [choice] = client.wait(none.id, timeout_s=60).choices
    assert (choice.complete, choice.tool_calls) == (None, ())

    with pytest.raises(JobFailed, match=r"the parameters of odd") as failed:
        client.wait(wrong.id, timeout_s=60)
    assert failed.value.result.error.field == "tools"


def counts(**keywords: Any) -> dict[str, Any]:
    """Parameters of which the compiler does not know all."""
    digits = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, **keywords}
    return {"type": "object", "properties": {"digits": digits}, "required": ["digits"]}


MISFIT = counts(minItems=12, maxItems=12, uniqueItems=True)  # 10 digits cannot be 12 that differ
FIT = counts(minItems=2, maxItems=3, contains={"type": "integer"}, minContains=2)  # as all are


def test_calls_that_a_grammar_keeps_in_part_are_checked(client: Client) -> None:
    """The whole answer comes, with why it does not fit, to a later reader of its stream as well."""
    asked: dict[str, Any] = {
        "messages": ASK, "temperature": 0, "max_tokens": 300, "tool_choice": "required", "n": 2,
        "parallel_tool_calls": False, "chat_template_kwargs": {"enable_thinking": False},
    }  # fmt: skip
    odd = client.submit(**asked, tools=[function("odd", MISFIT)], stream=True)
    even = client.submit(**asked, tools=[function("even", FIT)])
    for choice in client.wait(odd.id, timeout_s=60).choices:
        [call] = choice.tool_calls
        assert len(json.loads(call.function.arguments)["digits"]) == 12
        assert (choice.complete, choice.finish_reason) == (False, "tool_calls")
        assert choice.schema_error.startswith("the arguments of odd do not fit its parameters: $.digits: [")
        assert choice.schema_error.endswith("has non-unique elements")
    parts = [part for event in client.stream(odd.id) for part in getattr(event, "choices", ())]
    ends = [part for part in parts if part.finish_reason]
    told = [(end.complete, bool(end.schema_error), len(end.tool_calls)) for end in ends]
    assert told == [(False, True, 1)] * 2
    for choice in client.wait(even.id, timeout_s=60).choices:
        assert (choice.complete, choice.schema_error, len(choice.tool_calls)) == (True, "", 1)
    shown = asked | {"skip_special_tokens": False, "logit_bias": {token("<end>"): 100}, "n": 1}
    ended = client.submit(
        **shown | {"parallel_tool_calls": True}, tools=[function("odd", MISFIT)], stream=True
    )
    [choice] = client.wait(ended.id, timeout_s=60).choices
    assert (choice.text, len(choice.tool_calls)) == ("", 1), "its end token is no text"
    again = [client.submit(**asked, tools=[function(*one)]) for one in (("odd", MISFIT), ("even", FIT))]
    assert [client.wait(job.id, timeout_s=60).cached for job in again] == [False, True]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parameters", "keyword", "remedy"),
    [(MISFIT, "uniqueItems", "give items an enum"), (FIT, "contains", "bound the list by maxItems")],
)
def test_what_is_strict_is_kept_or_refused(
    client: Client, parameters: Any, keyword: str, remedy: str
) -> None:
    says = f'"{keyword}" cannot be kept (the parameters of f, at /properties/digits); {remedy}'
    tools = [function("other", FIT), function("f", parameters, strict=True)]
    job = client.submit(messages=ASK, tools=tools, tool_choice="required")
    with pytest.raises(JobFailed, match=re.escape(says)) as failed:
        client.wait(job.id, timeout_s=60)
    error = failed.value.result.error
    assert (error.code, error.field) == ("bad_request", "tools")


@pytest.mark.slow
def test_a_thought_is_apart_from_the_answer(client: Client) -> None:
    """With a format and without; a prompt that is no chat is continued as it is."""
    ends: dict[str, Any] = {"logit_bias": {token("</think>"): 5}, "temperature": 1.5, "max_tokens": 200}
    thinks = {"chat_template_kwargs": {"enable_thinking": True}}
    not_now = {"chat_template_kwargs": {"enable_thinking": False}}
    plate = {"structured_outputs": {"regex": "[A-C]{2}-[0-9]{3}"}}
    formed = client.submit(messages=ASK, **ends, **thinks, **plate, n=3)
    free = client.submit(messages=ASK, **ends, **thinks, stream=True)
    calls = client.submit(messages=ASK, **ends, **thinks, tools=TOOLS, tool_choice=NAMED)
    over = client.submit(messages=ASK, **ends, **not_now, **plate)
    cut = client.submit(messages=ASK, max_tokens=9, logit_bias={token("</think>"): -100}, **thinks, **plate)
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
    assert (choice.complete, len(choice.tool_calls), choice.text) == (True, 1, "")
    [choice] = client.wait(over.id, timeout_s=60).choices
    assert (choice.complete, choice.reasoning_content, len(choice.text)) == (True, "", 6)
    [choice] = client.wait(cut.id, timeout_s=60).choices
    assert (choice.complete, choice.finish_reason, choice.text) == (False, "length", "")
    assert choice.reasoning_content
    [choice] = client.wait(plain.id, timeout_s=60).choices
    assert (choice.text, choice.reasoning_content) == ("</think>" * 3, "")


def test_limits_of_tokens_hold_to_the_end(client: Client) -> None:
    """Through the queue; log-probabilities, stop strings and special tokens are told as asked for."""
    drawn: dict[str, Any] = {"temperature": 1.5, "seed": 1}
    begun = {"chat_template_kwargs": {"enable_thinking": True}}
    free = client.submit("the quick", **drawn, max_tokens=20, logprobs=True, top_logprobs=2)
    [first] = client.wait(free.id, timeout_s=60).choices
    told = [one for one in first.logprobs or () if one.token != "<end>"]
    assert b"".join(_bytes_of(one) for one in told).decode(errors="replace") == first.text
    letters = [token(letter) for letter in "abc"]
    params = {
        "bad": SamplingParams(**drawn, max_tokens=20, bad_words=("a", "b"), stop=("c",)),
        "only": SamplingParams(**drawn, max_tokens=20, allowed_token_ids=letters, stop=("cb", "ab"),
                               include_stop_str_in_output=True),
        "end": SamplingParams(logit_bias={token("<end>"): 100.0}, skip_special_tokens=False,
                              include_stop_str_in_output=True),
    }  # fmt: skip
    jobs = {name: client.submit("the quick", sampling=one) for name, one in params.items()}
    budget = SamplingParams(**drawn, max_tokens=20, thinking_token_budget=3)
    thought = client.submit(messages=ASK, sampling=budget, **begun, stream=True)
    results = {name: client.wait(job.id, timeout_s=60).choices[0] for name, job in jobs.items()}
    assert {token("a"), token("b")}.isdisjoint(results["bad"].token_ids)
    assert "c" not in results["bad"].text
    assert set(results["only"].token_ids) <= set(letters)
    assert results["only"].finish_reason == "length" or results["only"].text.endswith(("cb", "ab"))
    assert (results["end"].text, results["end"].finish_reason) == ("<end>", "stop")
    [choice] = client.wait(thought.id, timeout_s=60).choices
    assert choice.token_ids[3] == token("</think>")
    seen = Transcript()
    for event in client.stream(thought.id):
        seen.add(event)
    assert (seen.text(), bool(choice.text)) == (choice.text, True)
    stuck = SamplingParams(allowed_token_ids=letters[:1], bad_words=("aa", "aaa"), max_tokens=9)
    with pytest.raises(JobFailed, match="allow more") as failed:
        client.wait(client.submit("the", sampling=stuck).id, timeout_s=60)
    assert failed.value.result.error.code == "limits_stuck"


def _bytes_of(one: TokenLogprob) -> bytes:
    return one.token.encode() if one.bytes is None else bytes(one.bytes)
