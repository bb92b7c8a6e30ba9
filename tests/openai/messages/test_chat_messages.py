"""Messages as OpenAI's and vLLM's clients write them: what they say is in the request, or is refused."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.client.submit.requests import draft
from millstream.errors import InvalidRequest
from millstream.openai.api_endpoint import ApiEndpoint
from millstream.openai.messages.chat_messages import asked_messages
from millstream.openai.messages.image_parts import RequestImages
from millstream.openai.request_body import read_body
from millstream.wire.keys import Lane
from millstream.wire.messages import codec
from millstream.wire.messages.job_messages import ChatMessage, Request
from millstream.wire.messages.tools import FunctionCall, ToolCall

USER = {"role": "user", "content": "hi"}
CALL = {"name": "wind", "arguments": "{}"}


def read(**message: Any) -> ChatMessage:
    [made] = asked_messages([{"role": "assistant"} | message], RequestImages())
    return made


def said(text: str, **more: Any) -> ChatMessage:
    return ChatMessage(role="assistant", content=text, **more)


@pytest.mark.parametrize(
    ("message", "made"),
    [
        ({}, said("")),
        ({"content": None}, said("")),
        ({"content": []}, said("")),
        ({"content": None, "refusal": "No."}, said("No.")),
        ({"content": [{"type": "refusal", "refusal": "No."}]}, said("No.")),
        ({"content": "I may ", "refusal": "not."}, said("I may not.")),
        ({"content": [{"type": "output_text", "text": "a", "annotations": []}, "b"]}, said("ab")),
        ({"content": [{"type": "input_text", "text": "a"}, {"type": "text", "text": "b"}]}, said("ab")),
        ({"content": "7", "name": "Ann"}, said("7", name="Ann")),
        ({"reasoning_content": "Hm."}, said("", reasoning_content="Hm.")),
        ({"content": "7", "reasoning": "Hm."}, said("7", reasoning_content="Hm.")),
        ({"reasoning": "Hm.", "reasoning_content": "Hm."}, said("", reasoning_content="Hm.")),
        ({"role": "developer", "content": None}, ChatMessage(role="system", content="")),
        ({"role": "user"}, ChatMessage(role="user", content="")),
    ],
)
def test_every_form_of_a_message_is_read(message: dict[str, Any], made: ChatMessage) -> None:
    assert read(**message) == made


def test_a_function_call_is_a_call_of_a_tool() -> None:
    turns = [USER, {"role": "assistant", "content": None, "function_call": CALL},
             {"role": "function", "name": "wind", "content": "7"}]  # fmt: skip
    _, calling, outcome = asked_messages(turns, RequestImages())
    assert calling == said("", tool_calls=(ToolCall(id="call00001", function=FunctionCall(**CALL)),))
    assert outcome == ChatMessage(role="tool", content="7", name="wind", tool_call_id="call00001")


@pytest.mark.parametrize(
    ("message", "field", "problem"),
    [
        ({"content": 5}, "messages[0].content", "give a text"),
        ({"content": [{"type": "video_url"}]}, "messages[0].content[0].type", "only text and image parts"),
        ({"content": [{"type": ["text"]}]}, "messages[0].content[0].type", "only text and image parts"),
        ({"content": [{"type": "refusal", "text": "x"}]}, "messages[0].content[0].refusal", "give a text"),
        ({"refusal": 5}, "messages[0].refusal", "give a text"),
        ({"name": ["Ann"]}, "messages[0].name", "give a text"),
        ({"name": "n" * 513}, "messages[0].name", "512"),
        ({"reasoning_content": {}}, "messages[0].reasoning_content", "give a text"),
        ({"reasoning_content": "a", "reasoning": "b"}, "messages[0].reasoning", "one of the two"),
        ({"function_call": "wind"}, "messages[0].function_call", "give {name, arguments}"),
        ({"function_call": {"name": "f"}}, "messages[0].tool_calls[0].function.arguments", "missing"),
        ({"function_call": CALL, "tool_calls": [{}]}, "messages[0].function_call", "one of the two"),
        ({"role": "function", "content": "7"}, "messages[0].name", "name of the function"),
        ({"audio": {"id": "x"}}, "messages[0].audio", "not supported"),
    ],
)  # fmt: skip
def test_a_wrong_message_is_named(message: dict[str, Any], field: str, problem: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(**message)
    assert caught.value.field == field
    assert problem in caught.value.problem


def test_bodies_and_clients_read_messages_alike() -> None:
    turns = [
        USER,
        {"role": "assistant", "reasoning": "Hm.", "function_call": CALL},
        {"role": "user", "name": "Ann"},
    ]
    body = read_body(ApiEndpoint.CHAT, {"messages": turns}, lane=Lane.BATCH, tenant="")
    made = draft({"messages": turns}, 1_000, 1_000_000)
    assert codec.decode(Request, made.payload).messages == body.request.messages
    assert (made.version, body.ignored) == (5, ())
