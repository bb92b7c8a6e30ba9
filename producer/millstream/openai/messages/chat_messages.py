"""Reads the messages of a chat, and the tools of a body, for clients, the gateway and batch files.

OpenAI's older form of calls (an answer's `function_call`, and a message of role `function` with its outcome)
becomes a call of a tool and its outcome.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from millstream.errors import InvalidRequest
from millstream.openai.messages.image_parts import RequestImages
from millstream.openai.messages.message_content import content_fields
from millstream.openai.offered_tools import TOOL_FIELDS, asked_calls, asked_tools, checked
from millstream.openai.unsupported_field import UnsupportedField
from millstream.wire.messages.images import ROLES
from millstream.wire.messages.job_messages import ChatMessage

# "developer" is the API's newer name of the system message; chat templates know the older one
_ROLES = {"developer": "system"}


def chat_input(given: Mapping[str, Any], images: RequestImages) -> dict[str, Any]:
    """The fields of a request that messages and tools make; images are added to `images`. Raises
    InvalidRequest.
    """
    messages = given.get("messages")
    if not isinstance(messages, list) or not messages:
        raise InvalidRequest("messages", messages, "give a list of at least one {role, content}")
    asked = {"messages": asked_messages(messages, images)} | images.fields()
    return asked | asked_tools({name: given.get(name) for name in TOOL_FIELDS})


def _message(where: str, message: object, images: RequestImages) -> ChatMessage:
    """A message in any of the forms that OpenAI and vLLM take. Raises InvalidRequest below `where`."""
    if isinstance(message, ChatMessage):
        if any(part.image is not None for part in message.parts):
            problem = "name images of a whole Request; give that, or the images themselves as content"
            raise InvalidRequest(f"{where}.parts", f"{len(message.parts)} parts", problem)
        return message
    if not isinstance(message, Mapping):
        raise InvalidRequest(where, message, "give an object with role and content")
    if message.get("audio"):
        raise UnsupportedField(f"{where}.audio", message["audio"])
    role = message.get("role")
    if not isinstance(role, str) or not 1 <= len(role) <= 64:
        raise InvalidRequest(f"{where}.role", role, "give system, user or assistant")
    fields = {
        "role": _ROLES.get(role, role),
        "tool_calls": asked_calls(f"{where}.tool_calls", message.get("tool_calls") or []),
        "tool_call_id": _text(where, message, "tool_call_id", "give the id of a call"),
        "name": _text(where, message, "name", "give a text"),
        "reasoning_content": _thought(where, message),
        **_content(where, message, images),
    }
    if fields.get("parts") and fields["role"] not in ROLES:
        problem = f"has an image; only {' and '.join(ROLES)} messages may have any"
        raise InvalidRequest(f"{where}.content", role, problem)
    return checked(ChatMessage, where, fields)


def asked_messages(messages: Sequence[object], images: RequestImages) -> tuple[ChatMessage, ...]:
    """Converts all messages; calls of functions in their old form become calls of tools, and images are added
    to `images`. Raises InvalidRequest.
    """
    return tuple(
        _message(f"messages[{place}]", with_tool_calls(f"messages[{place}]", place, message), images)
        for place, message in enumerate(messages)
    )


def _content(where: str, message: Mapping[str, Any], images: RequestImages) -> dict[str, Any]:
    """An answer that was refused says so in `refusal`."""
    refusal = _text(where, message, "refusal", "give a text")
    return content_fields(f"{where}.content", message.get("content"), refusal, images)


def _thought(where: str, message: Mapping[str, Any]) -> str:
    """`reasoning` is vLLM's newer name of it."""
    thought, same = (
        _text(where, message, name, "give a text") for name in ("reasoning_content", "reasoning")
    )
    if thought and same and thought != same:
        raise InvalidRequest(
            f"{where}.reasoning", same, "differs from reasoning_content; give one of the two"
        )
    return thought or same


def _text(where: str, message: Mapping[str, Any], name: str, problem: str) -> str:
    value = message.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InvalidRequest(f"{where}.{name}", value, problem)
    return value


def with_tool_calls(where: str, place: int, message: object) -> object:
    """The message at this place of a chat in the newer form; any other unchanged. Raises InvalidRequest."""
    if not isinstance(message, Mapping):
        return message
    if message.get("role") == "function":
        if not message.get("name"):
            raise InvalidRequest(f"{where}.name", message.get("name"), "give the name of the function")
        return {**message, "role": "tool", "tool_call_id": _id(place - 1)}
    if not (call := message.get("function_call")):
        return message
    if message.get("tool_calls"):
        raise InvalidRequest(f"{where}.function_call", call, "stands beside tool_calls; give one of the two")
    if not isinstance(call, Mapping):
        raise InvalidRequest(f"{where}.function_call", call, "give {name, arguments}, as an answer has it")
    rest: dict[str, Any] = {name: value for name, value in message.items() if name != "function_call"}
    return {**rest, "tool_calls": [{"id": _id(place), "type": "function", "function": dict(call)}]}


def _id(place: int) -> str:
    """The id of the call in the answer at this place: nine letters and digits, as some templates want."""
    return f"call{place:05}"
