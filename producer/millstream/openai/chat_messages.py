"""Reads messages and tools of a body."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from millstream.errors import InvalidRequest
from millstream.openai.message_content import text_of
from millstream.openai.offered_tools import asked_calls, asked_tools, checked
from millstream.openai.unsupported_field import UnsupportedField
from millstream.wire.messages.job_messages import ChatMessage

TOOL_FIELDS = ("tools", "tool_choice", "parallel_tool_calls")


def chat_input(given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a request that messages and tools make. Raises InvalidRequest."""
    messages = given.get("messages")
    if not isinstance(messages, list) or not messages:
        raise InvalidRequest("messages", messages, "give a list of at least one {role, content}")
    turns = tuple(_message(f"messages[{place}]", item) for place, item in enumerate(messages))
    return {"messages": turns} | asked_tools({name: given.get(name) for name in TOOL_FIELDS})


def _message(where: str, message: Any) -> ChatMessage:
    if not isinstance(message, dict):
        raise InvalidRequest(where, message, "give an object with role and content")
    role = message.get("role")
    if not isinstance(role, str) or not 1 <= len(role) <= 64:
        raise InvalidRequest(f"{where}.role", role, "give system, user or assistant")
    if message.get("function_call"):
        raise UnsupportedField(f"{where}.function_call", message["function_call"])
    # "developer" is the API's newer name of the system message; chat templates know the older one
    role = "system" if role == "developer" else role
    calls = asked_calls(f"{where}.tool_calls", message.get("tool_calls") or [])
    content = message.get("content")
    text = "" if calls and content is None else _content(f"{where}.content", content)
    answers = message.get("tool_call_id") or ""
    if not isinstance(answers, str) or len(answers) > 512:
        raise InvalidRequest(f"{where}.tool_call_id", answers, "give the id of a call")
    fields = {"role": role, "content": text, "tool_calls": calls, "tool_call_id": answers}
    return checked(ChatMessage, where, fields)


def _content(where: str, content: Any) -> str:
    try:
        return text_of(where, content)
    except InvalidRequest as error:
        if error.field.endswith(".type"):
            raise UnsupportedField(error.field, error.value, error.problem) from error
        raise
