"""Reads the format that a body asks for: `response_format`, `structured_outputs`, or vLLM's older
fields, which begin with `guided_`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from millstream.errors import InvalidRequest
from millstream.openai.structured_outputs import asked_format, vllm_format
from millstream.wire.messages.response_format import ResponseFormat

GUIDED = {f"guided_{name}": name for name in ("json", "regex", "choice", "grammar", "whitespace_pattern")}
FORMAT_FIELDS = ("response_format", "structured_outputs", *GUIDED)
_NO_FORMAT: tuple[Any, ...] = (None, {"type": "text"}, [])


def format_of(body: Mapping[str, Any]) -> ResponseFormat | None:
    """Returns the format that the body asks for. Raises InvalidRequest naming the field of the body."""
    asked = asked_format(body)
    guided = {GUIDED[name]: body[name] for name in GUIDED if body.get(name) is not None}
    if not guided:
        return asked
    if asked is not None:
        name, value = f"guided_{next(iter(guided))}", next(iter(guided.values()))
        raise InvalidRequest(name, value, f"is given beside {format_field(body)}; give one of the two")
    return vllm_format(guided, "guided_{}".format)


def format_field(body: Mapping[str, Any]) -> str:
    """The name of the field that asks for a format; of several, the first."""
    return next((name for name in FORMAT_FIELDS if body.get(name) not in _NO_FORMAT), "response_format")


def has_format(body: Mapping[str, Any]) -> bool:
    """True if the body has a field about its format, even one that asks for none; tool calls count."""
    if any(body.get(name) is not None for name in FORMAT_FIELDS):
        return True
    return bool(body.get("tools")) and body.get("tool_choice") != "none"


def deprecated_in(body: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(name for name in GUIDED if body.get(name) is not None)


def ordered_text(body: Mapping[str, Any]) -> str:
    """Writes the fields that ask for a format or for calls of tools, with their keys in their order: an
    answer has its keys in the order of the schema's. Empty without such a field.
    """
    names = (*FORMAT_FIELDS, "tools")
    asked = {name: body[name] for name in names if body.get(name) not in _NO_FORMAT}
    return json.dumps(asked, ensure_ascii=False) if asked else ""
