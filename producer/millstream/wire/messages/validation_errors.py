"""Converts pydantic's validation error to an InvalidRequest: the field's path, the value and a remedy. Shared
by the client, which refuses before anything is sent, and the worker, which reports to other clients.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from millstream.errors import InvalidRequest

WHOLE = "request"  # the field of an error about no single field
BEYOND = "is nested too deep, or has too large a number; make it simpler"  # RecursionError, OverflowError
_KEY = "[key]"  # of a map, as pydantic names it
_LONGEST_PART = 80  # characters: a part of a path may be any key of a sender's map

_PROBLEMS = {
    "missing": "is missing; add it",
    "model_type": "must be a map (a JSON object)",
    "dict_type": "must be a map (a JSON object)",
    "tuple_type": "must be a list",
    "string_type": "must be a string",
    "string_unicode": "must be valid Unicode text; replace what is not",
    "string_too_short": "must have at least {min_length} characters",
    "string_too_long": "must have at most {max_length} characters and has {length}; shorten it",
    "string_pattern_mismatch": "must match the pattern {pattern}",
    "too_long": "must have at most {max_length} items; leave some out",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_parsing_size": "must be a whole number of fewer digits",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be a finite number",
    "bytes_type": "must be bytes",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "greater_than_equal": "must be at least {ge}",
    "greater_than": "must be above {gt}",
    "less_than_equal": "must be at most {le}",
    "less_than": "must be below {lt}",
    "enum": "must be {expected}",
    "literal_error": "must be {expected}",
}


class WrongField(ValueError):
    """Raised by a validator of a whole model: `field`, of that model, is the one to change."""

    def __init__(self, field: str, value: Any, problem: str) -> None:
        self.field = field
        self.value = value
        super().__init__(problem)


@contextlib.contextmanager
def within_reach() -> Iterator[None]:
    """Encloses code that reads a request. Raises InvalidRequest, for the whole request, in place of a
    RecursionError or OverflowError: its value has passed the bounds of its field."""
    try:
        yield
    except (RecursionError, OverflowError) as error:
        raise beyond(error) from None


def beyond(error: RecursionError | OverflowError) -> InvalidRequest:
    return InvalidRequest(WHOLE, type(error).__name__, BEYOND)


def invalid_request(error: ValidationError, whole: str = WHOLE) -> InvalidRequest:
    """Convert the first of the errors. `whole`: the field of an error about the whole model."""
    first = error.errors(include_url=False)[0]
    path = "".join(map(_step, first["loc"])).removeprefix(".")
    problem, value = _problem(first), first["input"]
    if first["type"] == "missing":
        value = None  # pydantic shows the map in which the field is missing
    if first["type"] == "bytes_type":
        value = type(value).__name__  # it may be an image as a text
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, WrongField):
        path = f"{path}.{cause.field}".removeprefix(".")
        value = cause.value
    return InvalidRequest(path or whole, value, problem)


def _step(part: int | str) -> str:
    """One of a path such as `messages[0].content`."""
    if isinstance(part, int):
        return f"[{part}]"
    return "" if part == _KEY else f".{part:.{_LONGEST_PART}}"


def _problem(first: ErrorDetails) -> str:
    """The sentence that states the requirement on the field."""
    bounds = {name: _plain(value) for name, value in first.get("ctx", {}).items()}
    if isinstance(first["input"], str | bytes):
        bounds["length"] = len(first["input"])
    known = _PROBLEMS.get(first["type"])
    text = known.format(**bounds) if known else first["msg"].removeprefix("Value error, ")
    return f"a key of it {text}" if _KEY in first["loc"] else text


def _plain(value: Any) -> Any:
    return f"{value:g}" if isinstance(value, float) else value
