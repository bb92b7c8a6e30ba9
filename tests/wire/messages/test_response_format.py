"""The format that a request asks for: what is taken, what is refused, and what follows from it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from millstream.errors import IncompleteAnswer
from millstream.wire.messages.choices import Choice, ChoiceDelta, Delta
from millstream.wire.messages.codec import decode, encode, unpack
from millstream.wire.messages.job_messages import Request, Result, read_request
from millstream.wire.messages.record import merged_choices
from millstream.wire.messages.response_format import ResponseFormat
from millstream.wire.messages.script_replies import LogEntry
from millstream.wire.messages.validation_errors import invalid_request


@pytest.mark.parametrize(
    "given",
    [
        {"type": "json_schema", "text": '{"type": "object"}', "compact": True},
        {"type": "json_schema", "text": json.dumps({"x": "ä" * 1000})},
        {"type": "regex", "text": r"\p{L}+(?!"},  # whether it is one, the worker finds
        {"type": "choice", "text": json.dumps([str(i) for i in range(10_000)])},
    ],
)
def test_formats_that_are_taken(given: dict[str, Any]) -> None:
    request = Request(prompt="a", response_format=ResponseFormat(**given))
    assert decode(Request, encode(request)) == request
    assert unpack(encode(request))["response_format"] == given


@pytest.mark.parametrize(
    ("sampling", "problem"),
    [({"min_tokens": 1}, "met with min_tokens 1"), ({"ignore_eos": True}, "met with ignore_eos True")],
)
def test_nothing_else_ends_the_answer_later(sampling: dict[str, Any], problem: str) -> None:
    fields = {"prompt": "a", "sampling": sampling}
    read_request(encode(Request.model_validate(fields)))
    with pytest.raises(ValidationError) as caught:
        Request.model_validate(fields | {"response_format": {"type": "json_object"}})
    wrong = invalid_request(caught.value)
    assert (wrong.field, problem in wrong.problem) == ("response_format", True)


def test_the_digest_covers_the_format_as_it_is_written() -> None:
    """And of a request without one it is what it was before there were formats."""
    assert Request(prompt="a").digest() == "7f38ca7f99a60a232d68d9ab5ba1116c"
    formats = [
        ResponseFormat(type="json_schema", text='{"a": 1, "b": 2}'),
        ResponseFormat(type="json_schema", text='{"b": 2, "a": 1}'),
        ResponseFormat(type="json_schema", text='{"a": 1, "b": 2}', compact=True),
        ResponseFormat(type="json_schema", text='{"a": 1, "b": 2}', whitespace_pattern=" "),
        ResponseFormat(type="grammar", text='{"a": 1, "b": 2}'),
    ]
    digests = [Request(prompt="a", response_format=one).digest() for one in (None, *formats)]
    assert len(set(digests)) == len(digests)
    again = ResponseFormat(type="json_schema", text='{"a": 1, "b": 2}', compact=False)
    assert Request(prompt="a", response_format=again).digest() == digests[1]


def test_a_merged_choice_is_as_complete_as_its_last_delta_says() -> None:
    told: list[tuple[bool | None, ...]] = [(None, True), (None, False), (None, None)]
    log = [
        LogEntry(1, seq, "d", encode(Delta(choices=tuple(
            ChoiceDelta(index=index, text="x", complete=one[seq - 1]) for index, one in enumerate(told)
        ))))
        for seq in (1, 2)
    ]  # fmt: skip
    assert [choice.complete for choice in merged_choices(log)] == [True, False, None]


class Mill(BaseModel):
    name: str
    sails: int


WHOLE = Choice(text='{"name": "Ä", "sails": 4}', finish_reason="stop", complete=True)


def test_a_whole_answer_is_an_object() -> None:
    result = Result(choices=(WHOLE, WHOLE.model_copy(update={"text": "[1]", "index": 1})))
    again = decode(Result, encode(result))
    assert again.parse(Mill) == Mill(name="Ä", sails=4)
    assert again.parse() == {"name": "Ä", "sails": 4}
    assert again.choices[1].parse() == [1]
    with pytest.raises(ValueError, match="Mill"):
        again.choices[1].parse(Mill)


@pytest.mark.parametrize(
    ("changes", "cut_by", "says"),
    [
        ({"complete": False, "finish_reason": "length"}, "length", "allow more tokens"),
        ({"complete": False}, "stop", "stop string"),
        ({"complete": None}, None, "had no response_format"),
        ({"complete": None, "finish_reason": None}, None, "did not come to its end"),
    ],
)
def test_any_other_answer_is_none(changes: dict[str, Any], cut_by: str | None, says: str) -> None:
    result = Result(choices=(WHOLE.model_copy(update=changes),))
    for model in (Mill, None):
        with pytest.raises(IncompleteAnswer, match=says) as caught:
            result.parse(model)
        assert (caught.value.index, caught.value.cut_by) == (0, cut_by)
        assert caught.value.text == WHOLE.text
    with pytest.raises(IncompleteAnswer):
        Result().parse()
