"""What must hold of every answer to a chat with tools or a format, whatever the model writes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jsonschema

from conformance.watch.answers import BrokenRule, ReadCall, ReadChoice, choices_of
from conformance.watch.exchanges import CHAT, Exchange

NOTHING = {"type": "object", "properties": {}}  # what a function without parameters takes


def faults(exchange: Exchange, marks: Sequence[str]) -> Iterator[str]:
    """One line each. `marks`: what the model writes around calls."""
    if exchange.status != 200:
        yield f"{exchange.path}: {exchange.status} {exchange.told[:400].decode(errors='replace')}"
    elif exchange.path == CHAT:
        try:
            choices = choices_of(exchange)
        except BrokenRule as error:
            yield str(error)
            return
        for choice in choices:
            yield from _of_choice(choice, exchange.asked, marks)


def _of_choice(choice: ReadChoice, asked: Mapping[str, Any], marks: Sequence[str]) -> Iterator[str]:
    is_json = not choice.calls and bool(asked.get("response_format"))
    if asked.get("tools") and asked.get("tool_choice") != "none" and not is_json:  # else as any other text
        found = [mark for mark in marks if mark in choice.content]
        yield from (f"{mark} in the content: {choice.content[-300:]!r}" for mark in found)
    yield from choice.unlike
    if choice.finish_reason is None:
        yield "a choice without an end"
    tools = {tool["function"]["name"]: tool["function"] for tool in asked.get("tools") or ()}
    for place, call in enumerate(choice.calls):
        may_be_cut = choice.is_cut and place == len(choice.calls) - 1
        yield from _of_call(call, tools, may_be_cut=may_be_cut, must_fit=choice.complete is True)
    if choice.calls and asked.get("tool_choice") == "none":
        yield f"a call, and tool_choice was none: {choice.calls}"
    if not choice.calls and not choice.is_cut:
        if asked.get("tool_choice", "auto") not in ("auto", "none"):
            yield f"no call, and the answer is not cut: {choice}"
        yield from _of_content(choice.content, asked.get("response_format") or {})


def _of_call(call: ReadCall, tools: Mapping[str, Any], *, may_be_cut: bool, must_fit: bool) -> Iterator[str]:
    if call.name not in tools:
        yield f"a call of {call.name}; there are {', '.join(tools)}"
        return
    try:
        arguments = json.loads(call.arguments)
    except ValueError as error:
        if not may_be_cut:
            yield f"arguments that are no JSON, and were not cut ({error}): {call}"
        return
    if not isinstance(arguments, dict):
        yield f"arguments that are no object: {call}"
    elif must_fit or tools[call.name].get("strict"):
        yield from _misfits(arguments, tools[call.name].get("parameters") or NOTHING, str(call))


def _of_content(content: str, wanted: Mapping[str, Any]) -> Iterator[str]:
    """Of an answer that is neither calls nor cut."""
    if wanted.get("type") not in ("json_schema", "json_object"):
        return
    try:
        value = json.loads(content)
    except ValueError as error:
        yield f"no JSON ({error}), in spite of {wanted['type']}: {content[:300]!r}"
        return
    yield from _misfits(value, wanted.get("json_schema", {}).get("schema", {}), content)


def _misfits(value: Any, schema: Mapping[str, Any], told: str) -> Iterator[str]:
    validator = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)(schema)
    yield from (f"{error.message:.200} in {told:.300}" for error in validator.iter_errors(value))
