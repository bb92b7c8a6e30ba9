"""Checks a request's fields against the table: refused ones raise, and those without effect are returned."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from millstream.openai.api_endpoint import ApiEndpoint
from millstream.openai.fields.field_table import (
    FIELDS,
    IGNORED_INSIDE,
    MESSAGE_FIELDS,
    STREAM_OPTION_FIELDS,
    FieldRule,
    Treatment,
)
from millstream.openai.messages.message_content import PART_NAMES, unknown_in_parts
from millstream.openai.name_likeness import refuse_misspelt
from millstream.openai.offered_tools import FUNCTION_NAMES, TOOL_NAMES, unknown_in_tools
from millstream.openai.unsupported_field import UnknownField, UnsupportedField

MOST_IGNORED = 64  # names of one request: they stand in a header
FIELD_NAMES = frozenset().union(*FIELDS.values())
_OF_MESSAGES = "messages."
_SHOWN = 64  # characters of a name


def _hinted(rules: Mapping[str, FieldRule]) -> set[str]:
    """The names that a misspelt one may mean. One word without effect is like too many others."""
    return {name for name, rule in rules.items() if "_" in name or rule.treatment is not Treatment.IGNORED}


HINTED_NAMES = frozenset().union(*map(_hinted, FIELDS.values()))
INNER_NAMES = {  # by the path of what has them
    "messages": frozenset(_hinted(MESSAGE_FIELDS)),
    "messages.content": PART_NAMES,
    "tools": TOOL_NAMES,
    "tools.function": FUNCTION_NAMES,
    "stream_options": frozenset(STREAM_OPTION_FIELDS),
}


def check_fields(endpoint: ApiEndpoint, body: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the names of fields without effect, those of messages among them. Raises UnsupportedField for
    one that is refused or misspelt.
    """
    ignored: dict[str, None] = {}
    for name, value in body.items():
        if _is_ignored(name, name, value, FIELDS[endpoint], HINTED_NAMES):
            _note(ignored, name)
    for where, message in _messages(endpoint, body):
        for name, value in message.items():
            if _is_ignored(f"{where}.{name}", name, value, MESSAGE_FIELDS, INNER_NAMES["messages"]):
                _note(ignored, f"{_OF_MESSAGES}{name}")
    for name in _inner_names(endpoint, body):
        _note(ignored, name)
    return tuple(ignored)


def check_message_names(messages: Sequence[object]) -> None:
    """Holds the names of a client's messages against the table. Nothing tells it of unknown ones, so that
    these are refused, too. Raises UnsupportedField.
    """
    for place, message in enumerate(messages):
        for name, value in message.items() if isinstance(message, Mapping) else ():
            field = f"messages[{place}].{name}"
            _is_ignored(field, str(name), value, MESSAGE_FIELDS, INNER_NAMES["messages"])
            if value is not None and name not in MESSAGE_FIELDS:
                raise UnknownField(field, value, "no such field; leave it out")


def check_stream_options(options: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the names of `stream_options` without effect. Raises UnsupportedField, UnknownField."""
    ignored: dict[str, None] = {}
    for name, value in options.items():
        field = f"stream_options.{name}"
        if _is_ignored(field, name, value, STREAM_OPTION_FIELDS, INNER_NAMES["stream_options"]):
            _note(ignored, field)
    return tuple(ignored)


def ignored_header(names: Sequence[str]) -> dict[str, str]:
    """The header of an answer that names them; none without names, which may be any text of a client's."""
    shown = (re.sub(r"[^A-Za-z0-9_.-]", "_", name[:_SHOWN]) for name in names)
    return {"x-millstream-ignored": ", ".join(shown)} if names else {}


def unread_names(endpoint: ApiEndpoint, body: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of fields that nothing reads, misspelt ones too. The body may be invalid."""
    names = [name for name, value in body.items() if _is_unread(FIELDS[endpoint].get(name), value)]
    found = {
        name
        for _, message in _messages(endpoint, body)
        for name, value in message.items()
        if _is_unread(MESSAGE_FIELDS.get(name), value)
    }
    inner = _inner_names(endpoint, body)
    return (*names, *(f"{_OF_MESSAGES}{name}" for name in sorted(found)), *inner)


def is_ignored_by_rule(name: str) -> bool:
    """True if a server has the field, and it has no effect here; `name`: as `unread_names` has it."""
    if name in IGNORED_INSIDE:
        return True
    of_messages = name.startswith(_OF_MESSAGES)
    rules = MESSAGE_FIELDS if of_messages else FIELDS[ApiEndpoint.CHAT]
    rule = rules.get(name.removeprefix(_OF_MESSAGES))
    return rule is not None and rule.treatment is Treatment.IGNORED


def remedy_of(name: str) -> str:
    """The remedy for a field that clients of other servers send; empty: there is none."""
    found = (FIELDS[endpoint].get(name) for endpoint in (ApiEndpoint.COMPLETIONS, ApiEndpoint.CHAT))
    return next((rule.remedy for rule in found if rule is not None and rule.remedy), "")


def _messages(endpoint: ApiEndpoint, body: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    given = body.get("messages")
    if endpoint is not ApiEndpoint.CHAT or not isinstance(given, list):
        return []
    return [(f"messages[{place}]", one) for place, one in enumerate(given) if isinstance(one, dict)]


def _inner_names(endpoint: ApiEndpoint, body: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of what nothing reads in tools and in parts of contents."""
    contents = (message.get("content") for _, message in _messages(endpoint, body))
    return (*unknown_in_tools(body.get("tools")), *unknown_in_parts(contents))


def _is_unread(rule: FieldRule | None, value: Any) -> bool:
    if rule is None:
        return value is not None
    return rule.treatment is Treatment.IGNORED and rule.asks(value)


def _is_ignored(
    field: str, name: str, value: Any, rules: Mapping[str, FieldRule], known: frozenset[str]
) -> bool:
    """Raises UnsupportedField."""
    rule = rules.get(name)
    if rule is None:
        refuse_misspelt(field, name, value, known)
    elif rule.treatment is Treatment.REFUSED and rule.asks(value):
        raise UnsupportedField(field, value, f"not supported here; {rule.remedy}")
    return _is_unread(rule, value)


def _note(ignored: dict[str, None], name: str) -> None:
    ignored[name] = None
    if len(ignored) > MOST_IGNORED:
        problem = f"no such field, and more than {MOST_IGNORED} others that nothing reads; leave them out"
        raise UnknownField(name, "", problem)
