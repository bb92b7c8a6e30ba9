"""Reads tools, the choice among them and calls in messages in OpenAI's shapes: for clients, batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from millstream.errors import InvalidRequest
from millstream.openai.name_likeness import refuse_misspelt
from millstream.openai.structured_outputs import schema_text
from millstream.wire.messages.response_format import MAX_BYTES
from millstream.wire.messages.tools import MAX_TOOLS, Tool, ToolCall, ToolChoice, size_of
from millstream.wire.messages.validation_errors import invalid_request

TOOL_FIELDS = ("tools", "tool_choice", "parallel_tool_calls")  # of a request
ToolArgument = Tool | Mapping[str, object]
ToolChoiceArgument = str | ToolChoice | Mapping[str, object]

M = TypeVar("M", bound=BaseModel)
TOOL_NAMES = frozenset({"type", "function"})
FUNCTION_NAMES = frozenset({"name", "description", "parameters", "strict"})
_CHOICES = ("auto", "none", "required")


def asked_tools(given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a request that its `tools`, `tool_choice` and `parallel_tool_calls` make; none of them
    without tools. Raises InvalidRequest.
    """
    fields: dict[str, Any] = {}
    if given.get("tools") is not None:
        fields["tools"] = _tools(given["tools"])
    if given.get("tool_choice") is not None:
        fields["tool_choice"] = _choice(given["tool_choice"])
    if (parallel := given.get("parallel_tool_calls")) is not None:
        if not isinstance(parallel, bool):
            raise InvalidRequest("parallel_tool_calls", parallel, "must be true or false")
        fields["parallel_tool_calls"] = parallel
    choice = fields.get("tool_choice")
    asks = fields.get("tools") or (choice is not None and choice.type not in ("auto", "none"))
    return fields if asks else {}


def asked_calls(where: str, given: object) -> tuple[ToolCall, ...]:
    """The calls of an earlier answer. Raises InvalidRequest."""
    if not isinstance(given, list | tuple):
        raise InvalidRequest(where, given, "give the list of calls as an answer has them")
    calls = []
    for place, one in enumerate(given):
        fields = dict(one) if isinstance(one, Mapping) else one
        is_call = isinstance(one, ToolCall)
        calls.append(one if is_call else checked(ToolCall, f"{where}[{place}]", fields))
    return tuple(calls)


def unknown_in_tools(tools: object) -> tuple[str, ...]:
    """Names beside the fields of tools and functions, for a warning: what they say limits no answer."""
    names: set[str] = set()
    for tool in tools if isinstance(tools, list) else ():
        function = tool.get("function") if isinstance(tool, dict) else None
        for path, given, known in (("tools", tool, TOOL_NAMES), ("tools.function", function, FUNCTION_NAMES)):
            if isinstance(given, dict):
                named = {name for name, value in given.items() if value is not None} - known
                names |= {f"{path}.{name}" for name in named}
    return tuple(sorted(names))


def _tools(given: object) -> tuple[Tool, ...] | None:
    """The tools as the wire has them; None for an empty list. Raises InvalidRequest."""
    if not isinstance(given, Sequence) or isinstance(given, str | bytes):
        raise InvalidRequest("tools", given, 'give a list of {"type": "function", "function": {…}}')
    if len(given) > MAX_TOOLS:
        raise InvalidRequest("tools", len(given), f"may be {MAX_TOOLS} functions; leave some out")
    tools: list[Tool] = []
    size = 0
    for place, one in enumerate(given):
        tools.append(_tool(f"tools[{place}]", one))
        size += size_of(tools[-1])
        if size > MAX_BYTES:  # the rest is not read: that takes time in proportion to its length
            problem = f"take {size} bytes up to here, and may take {MAX_BYTES} in all; shorten them"
            raise InvalidRequest(f"tools[{place}]", tools[-1].name, problem)
    return tuple(tools) or None


def _choice(given: object) -> ToolChoice:
    """Raises InvalidRequest."""
    if isinstance(given, ToolChoice):
        return given
    if isinstance(given, str) and given in _CHOICES:
        return checked(ToolChoice, "tool_choice", {"type": given})
    function = given.get("function") if isinstance(given, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(given, Mapping) or given.get("type") != "function" or not isinstance(name, str):
        problem = f'must be {", ".join(_CHOICES)} or {{"type": "function", "function": {{"name": …}}}}'
        raise InvalidRequest("tool_choice", given, problem)
    return checked(ToolChoice, "tool_choice", {"type": "function", "name": name})


def _tool(where: str, given: object) -> Tool:
    if isinstance(given, Tool):
        return given
    if not isinstance(given, Mapping):
        raise InvalidRequest(where, given, 'give {"type": "function", "function": {…}}')
    _refuse_misspelt(where, given, TOOL_NAMES)
    if given.get("type") != "function":
        problem = "only tools of type function are supported"
        raise InvalidRequest(f"{where}.type", given.get("type"), problem)
    function = given.get("function")
    if not isinstance(function, Mapping):
        raise InvalidRequest(f"{where}.function", function, 'give {"name": …, "parameters": {…}}')
    _refuse_misspelt(f"{where}.function", function, FUNCTION_NAMES)
    given_names = ("name", "description", "strict")
    fields = {name: function[name] for name in given_names if function.get(name) is not None}
    if function.get("parameters") is not None:
        fields["parameters"] = schema_text(f"{where}.function.parameters", function["parameters"])
    return checked(Tool, f"{where}.function", fields)


def _refuse_misspelt(where: str, given: Mapping[str, Any], known: frozenset[str]) -> None:
    for name in given.keys() - known:
        refuse_misspelt(f"{where}.{name}", str(name), given[name], known)


def checked(kind: type[M], where: str, fields: object) -> M:
    """A message of this kind. Raises InvalidRequest below `where`."""
    try:
        return kind.model_validate(fields, strict=True)
    except ValidationError as error:
        wrong = invalid_request(error, whole="")
        raise InvalidRequest(f"{where}.{wrong.field}".rstrip("."), wrong.value, wrong.problem) from None
