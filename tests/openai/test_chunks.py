"""Chunks of answers with calls of tools, thoughts and formats: what streams say comes to what answers say."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream import Choice, ChoiceDelta, FunctionCall, ToolCall, Usage
from millstream.openai.api_endpoint import ApiEndpoint
from millstream.openai.chunks import Chunks, ToolCallFilter
from millstream.wire.messages.choices import ToolCallDelta

CALL = ToolCall(id="c1", function=FunctionCall(name="get", arguments='{"a": 1}'))
BEGUN = {"index": 0, "id": "c1", "type": "function", "function": {"name": "get", "arguments": ""}}
WRITTEN = '<tool_call>\n{"name": "get", "arguments": {"a": 1}}\n</tool_call>'


def chunks_of(*deltas: ChoiceDelta, tools: bool = False) -> list[dict[str, Any]]:
    head = {"id": "chatcmpl-1", "created": 7, "model": "m", "service_tier": "flex"}
    made = Chunks(ApiEndpoint.CHAT, head, may_call=tools, include_usage=False)
    found = [chunk for delta in deltas for chunk in made.of((delta,))]
    assert {(one["id"], one["created"], one["service_tier"]) for one in found} <= {("chatcmpl-1", 7, "flex")}
    assert made.of_usage(Usage(prompt_tokens=1))["usage"]["total_tokens"] == 1
    return [choice for chunk in found for choice in chunk["choices"]]


def test_calls_come_whole_and_their_text_does_not() -> None:
    found = chunks_of(
        ChoiceDelta(text="I look. <too"),
        ChoiceDelta(text='l_call>\n{"name": "g'),
        ChoiceDelta(text="…", tool_calls=(CALL,), finish_reason="tool_calls", complete=True),
        tools=True,
    )
    assert [one["delta"] for one in found] == [
        {"role": "assistant", "content": ""},
        {"content": "I look."},
        {"tool_calls": [BEGUN]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"a": 1}'}}]},
        {},
    ]
    assert (found[-1]["finish_reason"], found[-1]["complete"]) == ("tool_calls", True)


def test_calls_come_piece_by_piece_behind_their_text() -> None:
    """Text that mentions a tag is text; what was in no piece comes at the end."""
    found = chunks_of(
        ChoiceDelta(text="As <tool_call> says, 3 <"),
        ChoiceDelta(tool_call_deltas=(ToolCallDelta(id="c1", name="get", arguments='{"a"'),)),
        ChoiceDelta(tool_call_deltas=(ToolCallDelta(arguments=": "),)),
        ChoiceDelta(tool_calls=(CALL, CALL), finish_reason="length", complete=False),
        tools=True,
    )
    assert "".join(one["delta"].get("content", "") for one in found) == "As <tool_call> says, 3 <"
    pieces = [piece for one in found for piece in one["delta"].get("tool_calls", ())]
    assert [(piece["index"], piece.get("id"), piece["function"]) for piece in pieces] == [
        (0, "c1", {"name": "get", "arguments": ""}), (0, None, {"arguments": '{"a"'}),
        (0, None, {"arguments": ": "}), (0, None, {"arguments": "1}"}),
        (1, "c1", {"name": "get", "arguments": ""}), (1, None, {"arguments": '{"a": 1}'}),
    ]  # fmt: skip


def test_thoughts_and_choices_have_places_of_their_own() -> None:
    found = chunks_of(
        ChoiceDelta(index=1, reasoning_content="hm"), ChoiceDelta(text="a <b"), ChoiceDelta(index=1, text="c")
    )
    assert [(one["index"], one["delta"]) for one in found] == [
        (1, {"role": "assistant", "content": ""}), (1, {"reasoning_content": "hm"}),
        (0, {"role": "assistant", "content": ""}), (0, {"content": "a <b"}), (1, {"content": "c"}),
    ]  # fmt: skip


PIECES = st.lists(
    st.sampled_from(
        [
            "a",
            " ",
            "\n",
            "<",
            "<tool",
            "_call>",
            "</tool_call>",
            "<tool_call>",
            '<tool_call>\n{"name": "',
            "{}",
        ]
    )
)


@given(PIECES, st.booleans())
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_what_was_shown_is_the_content(size: int, pieces: list[str], has_calls: bool) -> None:
    text = "".join(pieces) + (WRITTEN if has_calls else "")
    spoken = ToolCallFilter()
    shown = "".join([spoken.push(text[at : at + size]) for at in range(0, len(text), size)])
    shown += spoken.rest(has_calls)
    content = Choice(text=text, tool_calls=(CALL,) if has_calls else ()).content or ""
    assert (shown.strip() == content) if has_calls else (shown == content)
