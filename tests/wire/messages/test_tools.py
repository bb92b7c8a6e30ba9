"""Tools and calls as they travel: bounds, the digest, the version, and results that have calls."""

from __future__ import annotations

import json
from typing import Any

import pytest

from millstream.client.streaming.merge import missing_deltas
from millstream.errors import IncompleteAnswer
from millstream.wire.messages.choices import Choice, ChoiceDelta, Delta
from millstream.wire.messages.codec import decode, encode
from millstream.wire.messages.job_messages import Request, Result, read_request
from millstream.wire.messages.record import merged_choices
from millstream.wire.messages.script_replies import LogEntry
from millstream.wire.messages.tools import FunctionCall, ToolCall

HELLO = {"role": "user", "content": "hi"}
GET = {"name": "get", "parameters": '{"type":"object","properties":{"b":{},"a":{}}}'}
CALL = {"id": "c1", "function": {"name": "get", "arguments": "{}"}}
CALLED = ToolCall(id="c1", function=FunctionCall(name="get", arguments='{"a":1}'))


def request(**fields: Any) -> Request:
    return Request.model_validate({"messages": [HELLO]} | fields)


def test_a_choice_of_no_call_leaves_the_answer_free() -> None:
    none = {"type": "none"}
    made = request(tools=[GET], tool_choice=none, response_format={"type": "json_object"}, sampling={"n": 2})
    assert (made.calling, made.may_call) == ("none", False)
    assert [request(tools=[GET]).calling, request().calling] == ["auto", "none"]


def test_an_answer_of_calls_needs_no_content() -> None:
    turns = [{"role": "assistant", "content": None, "tool_calls": [CALL]},
             {"role": "tool", "tool_call_id": "c1", "content": "7"}]  # fmt: skip
    made = request(messages=[HELLO, *turns])
    assert made.messages is not None
    assert (made.messages[1].content, made.messages[1].tool_calls[0].function.name) == ("", "get")
    assert read_request(encode(made)) == made


def test_the_version_is_the_lowest_that_has_all_fields() -> None:
    """Message fields count, too: an older worker would not see the calls."""
    assert request().lowest_version() == request(parallel_tool_calls=True).lowest_version() == 1
    answered = [HELLO, {"role": "assistant", "tool_calls": [CALL]}]
    outcome = [HELLO, {"role": "tool", "tool_call_id": "c1", "content": "7"}]
    made = [request(tools=[GET]), request(messages=answered), request(messages=outcome)]
    assert [one.lowest_version() for one in made] == [3, 3, 3]
    assert request(messages=[HELLO, {"role": "tool", "content": "7"}]).lowest_version() == 1


def test_the_digest_covers_tools_as_they_are_written_and_calls() -> None:
    """And of a request without any it is what it was before there were tools."""
    assert request().digest() == "cfbc7e281e20cd5fc075d66ea1f52f04"
    swapped = GET | {"parameters": '{"type":"object","properties":{"a":{},"b":{}}}'}
    requests = [
        request(), request(tools=[GET]), request(tools=[swapped]),
        request(tools=[GET], tool_choice={"type": "required"}),
        request(tools=[GET], tool_choice={"type": "function", "name": "get"}),
        request(tools=[GET], parallel_tool_calls=False), request(tools=[GET, swapped | {"name": "put"}]),
        request(messages=[HELLO, {"role": "assistant", "content": "", "tool_calls": [CALL]}]),
        request(messages=[HELLO, {"role": "assistant", "content": ""}]),
        request(messages=[HELLO, {"role": "tool", "content": "", "tool_call_id": "c1"}]),
    ]  # fmt: skip
    assert len({one.digest() for one in requests}) == len(requests)
    assert request(tools=[GET], tool_choice={"type": "auto"}).digest() == requests[1].digest()


def test_strict_is_not_in_the_digest_and_needs_no_newer_worker() -> None:
    """Clients have always sent it, and ours dropped it."""
    strict, free = (request(tools=[GET | {"strict": strict}]) for strict in (True, False))
    assert strict.digest() == free.digest() == request(tools=[GET]).digest()
    assert strict.lowest_version() == request(tools=[GET]).lowest_version() == 3
    again = read_request(encode(strict))
    assert again.tools is not None
    assert again.tools[0].strict
    assert encode(free) == encode(request(tools=[GET]))


def test_calls_and_thoughts_of_a_log_are_those_of_the_result() -> None:
    parts = [
        ChoiceDelta(reasoning_content="I "),
        ChoiceDelta(reasoning_content="think", text="so"),
        ChoiceDelta(text=".", finish_reason="tool_calls", complete=True, tool_calls=(CALLED,)),
    ]
    log = [LogEntry(1, seq, "d", encode(Delta(choices=(part,)))) for seq, part in enumerate(parts, 1)]
    [merged] = merged_choices(log)
    end: dict[str, Any] = {"finish_reason": "tool_calls", "complete": True, "tool_calls": (CALLED,)}
    whole = Choice(text="so.", reasoning_content="I think", **end)
    assert merged == whole
    for read in range(4):
        read_so_far = [Delta(choices=(part,)) for part in parts[:read]]
        rest = missing_deltas([whole], read_so_far)
        pieces = [*parts[:read], *rest]
        assert "".join(one.reasoning_content for one in pieces) == "I think"
        assert "".join(one.text for one in pieces) == "so."
        assert [one.tool_calls for one in pieces if one.finish_reason] == [(CALLED,)]


def test_why_calls_do_not_fit_comes_with_the_end() -> None:
    end: dict[str, Any] = {
        "finish_reason": "tool_calls", "complete": False, "tool_calls": (CALLED,),
        "schema_error": "the arguments of get do not fit its parameters: $.a: 1 is not of type 'string'",
    }  # fmt: skip
    parts = [ChoiceDelta(text="so"), ChoiceDelta(text=".", **end)]
    log = [LogEntry(1, seq, "d", encode(Delta(choices=(part,)))) for seq, part in enumerate(parts, 1)]
    [merged] = merged_choices(log)
    assert merged == Choice(text="so.", **end)
    for read in range(2):
        *_, rest = missing_deltas([merged], [Delta(choices=(part,)) for part in parts[:read]])
        assert (rest.schema_error, rest.complete) == (end["schema_error"], False)
    assert missing_deltas([merged], [Delta(choices=(part,)) for part in parts]) == ()
    again = decode(Result, encode(Result(choices=(merged,))))
    with pytest.raises(IncompleteAnswer, match=r"no whole answer: the arguments of get do not fit") as caught:
        again.parse()
    assert (caught.value.cut_by, caught.value.schema_error) == (None, end["schema_error"])


def test_content_is_the_text_beside_the_calls() -> None:
    text = 'Let me look.\n<tool_call>\n{"name": "get", "arguments": {"a":1}}\n</tool_call>'
    assert Choice(text=text, tool_calls=(CALLED,)).content == "Let me look."
    assert Choice(text=text.partition("\n")[2], tool_calls=(CALLED,)).content is None
    assert Choice(text=text).content == text, "as it was cut"
    again = decode(Result, encode(Result(choices=(Choice(tool_calls=(CALLED,)),))))
    assert json.loads(again.choices[0].tool_calls[0].function.arguments) == {"a": 1}
    assert again.choices[0].tool_calls[0].type == "function"
