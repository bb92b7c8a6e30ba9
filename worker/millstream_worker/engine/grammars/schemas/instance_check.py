"""Validates JSON texts by the whole of a JSON schema, with the library that knows all of it.

A pattern or a reference of the schema may take any time: call it where that is bounded.
"""

from __future__ import annotations

import json
from decimal import Decimal, InvalidOperation
from typing import Any


def problem_of_instance(schema: str, instance: str) -> str:
    """Returns why the instance does not fit, in one line; empty if it does. Both are JSON texts."""
    from jsonschema import validators  # takes 0.2 s, and most requests need none
    from referencing.jsonschema import EMPTY_REGISTRY

    try:
        form = _exact(schema)
        kind = validators.validator_for(form, default=validators.Draft202012Validator)
        errors = kind(form, registry=EMPTY_REGISTRY).iter_errors(_exact(instance))
        error = next(errors, None)
    except Exception as problem:  # noqa: BLE001 - a schema that the library cannot read, or follow
        return f"cannot be validated: {problem!r:.200}"
    return "" if error is None else f"{error.json_path}: {error.message}"[:300]


def _exact(text: str) -> Any:
    """In binary, multiples of 0.01 are none."""
    return json.loads(text, parse_float=_decimal)


def _decimal(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:  # an exponent of more than 18 digits
        return Decimal(float(text))
