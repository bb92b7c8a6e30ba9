"""OpenAI's older form of calls: an answer's `function_call` and its outcome, a message of role `function`,
become a call of a tool and its outcome.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from millstream.errors import InvalidRequest


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
