"""Tools that customers let the model call, and what is told of an answer: its text and calls as one text,
which only grows.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from typing import Any

from support.workers.word_answers import text_model

from millstream.openai.offered_tools import asked_tools
from millstream.wire.messages.job_messages import Request
from millstream.wire.messages.tools import ToolCall
from millstream_worker.engine.protocol.request import GrammarSpec
from millstream_worker.intake.preparation.grammar_request import grammar_of
from millstream_worker.text.reasoning import ThoughtStart

LENGTHS = (30, 90, 250)  # tokens: a call takes one for each character
_COLOURS = {"enum": ["red", "green", "blue"]}
_FUNCTIONS = (
    {"name": "count", "parameters": {"type": "object", "properties": {"from": {"type": "integer"}}}},
    {
        "name": "paint",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {
                "colours": {"type": "array", "items": _COLOURS, "maxItems": 3},
                "wet": {"type": "boolean"},
            },
            "required": ["colours", "wet"],
        },
    },
    {"name": "ring"},
)
_BEGIN, _MIDDLE = '<tool_call>\n{"name": "', '", "arguments": '


def draw(source: random.Random) -> dict[str, Any]:
    """The fields of a request that calls at least one; every draw comes from `source`."""
    offered = source.sample(_FUNCTIONS, source.randrange(1, len(_FUNCTIONS) + 1))
    fields: dict[str, Any] = {
        "tools": [{"type": "function", "function": one} for one in offered],
        "tool_choice": "required",
        "parallel_tool_calls": source.random() < 0.7,
    }
    if source.random() < 0.2:
        fields["tool_choice"] = {"type": "function", "function": {"name": offered[0]["name"]}}
    return fields


def grammar(fields: dict[str, Any]) -> GrammarSpec:
    """Of an order's answers."""
    request = Request.model_validate({"messages": fields["messages"], **asked_tools(fields)})
    spec = grammar_of(request, ThoughtStart.NONE, text_model(), ())
    assert spec is not None, "it has tools"
    return spec


def told(output: str) -> str:
    """What is told of an output that only calls, and may be cut anywhere."""
    calls = []
    for part in output.split(_BEGIN)[1:]:
        name, begun, rest = part.partition(_MIDDLE)
        if begun:
            calls.append((name, _arguments(rest)))
    return _shown("", calls)


def told_of(text: str, calls: Iterable[ToolCall]) -> str:
    return _shown(text, ((call.function.name, call.function.arguments) for call in calls))


def _shown(text: str, calls: Iterable[tuple[str, str]]) -> str:
    return text + "".join(f" => {name} {arguments}" for name, arguments in calls)


def _arguments(text: str) -> str:
    try:
        return text[: json.JSONDecoder().raw_decode(text)[1]]
    except ValueError:
        return text
