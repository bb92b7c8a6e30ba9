"""A list of prompts: the requests that it becomes, the ids of their jobs, and the one answer of theirs."""

from __future__ import annotations

from typing import Any

import pytest

from millstream import Choice, ErrorInfo, Result, Timing, Usage
from millstream.errors import InvalidRequest
from millstream.openai.api_endpoint import ApiEndpoint
from millstream.openai.prompt_list import error_as_sent, error_of_prompt, joined_result, listed_id, own_ids
from millstream.openai.request_body import read_body
from millstream.wire.keys import Lane, check_own_id
from millstream.wire.messages.job_messages import Request

FORMAT = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}


def requests(prompt: Any, **body: Any) -> tuple[Request, ...]:
    given = {"prompt": prompt, "n": 2, "seed": 7, "metadata": {"a": "b"}} | body
    return read_body(ApiEndpoint.COMPLETIONS, given, lane=Lane.BATCH, tenant="acme").requests


@pytest.mark.parametrize("more", [{}, {"response_format": FORMAT, "stop": "x"}])
def test_each_prompt_is_the_request_of_it_alone(more: dict[str, Any]) -> None:
    prompts = ["one", [1, 2], "three"]
    listed = requests(prompts, **more)
    assert listed == tuple(requests(prompt, **more)[0] for prompt in prompts)
    assert [one.digest() for one in listed] == [requests(prompt, **more)[0].digest() for prompt in prompts]
    for prompt in prompts:
        assert requests([prompt], **more) == requests(prompt, **more)


def test_the_choices_of_all_prompts_are_bounded() -> None:
    assert len(requests(["x"] * 256, n=4)) == 256
    with pytest.raises(InvalidRequest, match=r"^n: 128 choices × 256 prompts are more than 1,024 .*fewer"):
        requests(["x"] * 256, n=128)


def test_jobs_of_a_list_have_ids_of_one_name() -> None:
    assert listed_id("run.7", 1) == "run.7"
    assert own_ids("run.7") == ["run.7"]
    assert own_ids(listed_id("run.7", 3)) == ["run.7-0", "run.7-1", "run.7-2"]
    assert all(map(check_own_id, own_ids(listed_id("g7", 256))))
    for damaged in ("a+", "a+x", "a+99999999", "a+²"):
        assert own_ids(damaged) == [damaged]


def test_answers_are_joined_in_the_order_of_prompts() -> None:
    one, two = (
        Result(
            choices=tuple(Choice(index=index, text=f"{text}{index}") for index in range(2)),
            usage=Usage(prompt_tokens=tokens, output_tokens=2),
            timing=Timing(submitted_ms=5, first_token_ms=first, finished_ms=first + 3),
            cached=text == "b",
            model="m",
        )
        for text, tokens, first in (("a", 3, 20), ("b", 4, 10))
    )
    joined = joined_result([one, two])
    assert [(choice.index, choice.text) for choice in joined.choices] == [
        (0, "a0"), (1, "a1"), (2, "b0"), (3, "b1")
    ]  # fmt: skip
    assert joined.usage == Usage(prompt_tokens=7, output_tokens=4)
    assert joined.timing == Timing(submitted_ms=5, first_token_ms=10, finished_ms=23)
    assert (joined.cached, joined.model) == (False, "m")
    assert joined_result([one]) is one


@pytest.mark.parametrize(
    ("field", "message", "told"),
    [
        ("prompt", "prompt: too long", ("prompt[3]", "prompt[3]: too long")),
        ("token_ids[5]", "token_ids[5]: no token", ("prompt[3][5]", "prompt[3][5]: no token")),
        ("sampling.n", "sampling.n: too many", ("sampling.n", "sampling.n: too many")),
        (None, "it died", (None, "it died")),
    ],
)
def test_an_error_names_its_prompt(field: str | None, message: str, told: tuple[str | None, str]) -> None:
    error = ErrorInfo(code="bad_request", message=message, field=field)
    named = error_of_prompt(error, 3, prompts=4)
    assert (named.field, named.message) == told
    assert error_of_prompt(error, 0, prompts=1) is error


def test_an_error_names_the_part_that_was_sent() -> None:
    sent = {"messages[0].parts[0]": "messages[0].content[1]"}
    [part] = sent
    error = ErrorInfo(code="bad_request", message=f"{part}: is cut", field=part)
    named = error_as_sent(error, sent, 0, prompts=1)
    assert (named.field, named.message) == ("messages[0].content[1]", "messages[0].content[1]: is cut")
    assert error_as_sent(error, {}, 0, prompts=1) is error
    prompt = ErrorInfo(code="bad_request", message="too long", field="prompt")
    assert error_as_sent(prompt, {}, 3, prompts=4).field == "prompt[3]"
