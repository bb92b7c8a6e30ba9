"""Defines the format that a request asks of its answer: JSON by a schema, any JSON object, a regular
expression, one of some texts, or a grammar.

Checks all that needs no grammar compiler, for clients before they send and for workers before they compile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Literal, Self

from pydantic import StringConstraints, model_validator

from millstream.json_bytes import strict_json
from millstream.wire.messages.bounds.depth import MAX_DEPTH, is_deeper
from millstream.wire.messages.bounds.format_bounds import MAX_CHOICE, problem_of_pattern, problem_of_shape
from millstream.wire.messages.bounds.grammar_bounds import problem_of_grammar
from millstream.wire.messages.codec import Message
from millstream.wire.messages.validation_errors import BEYOND, WrongField

MAX_BYTES = 256 * 1024  # of the text in UTF-8
MAX_CHOICES = 10_000
JSON_TYPES = ("json_schema", "json_object")


class ResponseFormat(Message):
    """`text` is, by `type`: the schema as JSON text, whose key order is the answer's (json_schema); empty
    (json_object); the pattern (regex); a JSON list of texts (choice); Lark or GBNF text (grammar).

    For JSON only: `compact` allows no whitespace between tokens; `whitespace_pattern` is a regular expression
    for it, where None is the worker's bounded one.
    """

    type: Literal["json_schema", "json_object", "regex", "choice", "grammar"]
    text: Annotated[str, StringConstraints(max_length=MAX_BYTES)] = ""
    compact: bool = False
    whitespace_pattern: Annotated[str, StringConstraints(min_length=1, max_length=256)] | None = None

    @model_validator(mode="after")
    def _fits_its_type(self) -> Self:
        if (size := len(self.text.encode())) > MAX_BYTES:
            raise WrongField("text", self.text, f"takes {size} bytes and may take {MAX_BYTES}; shorten it")
        if problem := _problem(self.type, self.text):
            raise WrongField("text", self.text, problem)
        if self.compact and self.type not in JSON_TYPES:
            raise WrongField("compact", True, f"is for JSON and not for a {self.type}; leave it out")
        if self.whitespace_pattern is not None and (self.compact or self.type not in JSON_TYPES):
            other = "JSON without whitespace" if self.compact else f"a {self.type}"
            problem = f"is for JSON with whitespace and not for {other}; leave it out"
            raise WrongField("whitespace_pattern", self.whitespace_pattern, problem)
        if self.whitespace_pattern and (problem := problem_of_pattern(self.whitespace_pattern)):
            raise WrongField("whitespace_pattern", self.whitespace_pattern, problem)
        return self


def _problem(kind: str, text: str) -> str | None:
    """Returns the problem of a format's text, and the remedy."""
    if kind == "json_object":
        return "must be empty with json_object; leave it out, or use json_schema" if text else None
    if not text:
        return f"is empty; give the {kind}"
    return _PROBLEMS[kind](text) if kind in _PROBLEMS else None


def problem_of_schema(text: str) -> str | None:
    """Returns the problem of a schema's JSON text, as far as it shows without a compiler, and the remedy."""
    try:
        return _problem_of_schema(_parsed(text))
    except (RecursionError, OverflowError):
        return BEYOND


def _problem_of_schema(schema: Any) -> str | None:
    if isinstance(schema, _NotJson):
        return f"is no JSON: {schema}; write a JSON schema"
    if schema is False:
        return "is the schema `false`, which no answer can fit; write the schema of the answer"
    if schema is True:
        return None
    if not isinstance(schema, dict):
        return "must be a JSON schema, which is an object"
    if is_deeper(schema):
        return f"is nested more than {MAX_DEPTH} deep; move parts to $defs, and refer to them"
    return problem_of_shape(schema)


def _problem_of_choices(text: str) -> str | None:
    choices = _parsed(text)
    if not isinstance(choices, list) or not all(isinstance(one, str) and one for one in choices):
        return "must be a list of texts, none of them empty"
    if not 1 <= len(choices) <= MAX_CHOICES:
        return f"must have 1 to {MAX_CHOICES} texts and has {len(choices)}"
    if len(set(choices)) < len(choices):
        [(repeated, _)] = Counter(choices).most_common(1)
        return f"has {repeated!r:.80} more than once; leave the others out"
    if (longest := max(map(len, choices))) > MAX_CHOICE:
        return f"has a text of {longest} characters, and may have {MAX_CHOICE}; choose among short names"
    return None


_PROBLEMS: dict[str, Callable[[str], str | None]] = {
    "json_schema": problem_of_schema,
    "choice": _problem_of_choices,
    "regex": partial(problem_of_pattern, most=MAX_CHOICE),
    "grammar": problem_of_grammar,
}


class _NotJson(ValueError):
    """Returned, not raised: a validator would report it as its own."""


def _parsed(text: str) -> Any:
    try:
        return strict_json(text)
    except RecursionError:
        return _NotJson("it is nested too deep")
    except ValueError as error:
        return _NotJson(error)
