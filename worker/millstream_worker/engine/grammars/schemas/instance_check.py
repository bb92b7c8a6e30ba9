"""Validates JSON texts by the whole of a JSON schema, with the library that knows all of it.

A pattern or a reference of the schema may take any time: call it where that is bounded.
"""

from __future__ import annotations

import json
import re
from decimal import Decimal, InvalidOperation
from typing import Any

_MOST_DIGITS = 400  # of a whole number
_DECIMAL = re.compile(r"Decimal\('([^']*)'\)")


def load_library() -> None:
    """It takes up to a second, and most requests need none."""


def problem_of_instance(schema: str, instance: str, *, formats: bool = False) -> str:
    """Returns why the instance does not fit, in one line; empty if it does. Both are JSON texts. `formats`:
    these are more than annotations.
    """
    from jsonschema import validators
    from referencing.jsonschema import EMPTY_REGISTRY

    try:
        form = _exact(schema)
        kind = validators.validator_for(form, default=validators.Draft202012Validator)
        checker = kind.FORMAT_CHECKER if formats else None
        validator = kind(form, registry=EMPTY_REGISTRY, format_checker=checker)
        error = next(validator.iter_errors(_exact(instance)), None)
    except Exception as problem:  # noqa: BLE001 - a schema that the library cannot read, or follow
        return f"cannot be validated: {problem!r:.200}"
    return "" if error is None else _DECIMAL.sub(r"\1", f"{error.json_path}: {error.message}")[:300]


def _exact(text: str) -> Any:
    """In binary, multiples of 0.01 are none."""
    return json.loads(text, parse_float=_number)


def _number(text: str) -> int | Decimal:
    try:
        value = Decimal(text)
    except InvalidOperation:  # an exponent of more than 18 digits
        return Decimal(float(text))
    is_whole = value.adjusted() < _MOST_DIGITS and value == value.to_integral_value()
    return int(value) if is_whole else value
