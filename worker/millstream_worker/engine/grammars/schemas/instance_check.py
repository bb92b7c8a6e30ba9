"""Validates JSON texts by the whole of a JSON schema, with the library that knows all of it.

A pattern or a reference of the schema may take any time: call it where that is bounded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation, localcontext
from typing import Any

import regex

from millstream_worker.engine.grammars.schemas.subschemas import Schema, all_parts

_MOST_DIGITS = 400  # of a whole number
_PRECISION = 1000  # digits of a quotient
_DECIMAL = re.compile(r"Decimal\('([^']*)'\)")


def problem_of_schema(schema: str) -> str:
    """Returns why nothing can be validated by the schema, in one line; empty if it can."""
    from jsonschema import FormatChecker, SchemaError
    from jsonschema_specifications import REGISTRY
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012

    try:
        validator = _validator(schema)
        validator.check_schema(validator.schema, format_checker=FormatChecker(()))  # a regex is not Python's
        parts = list(all_parts(validator.schema))
        for part in parts:
            regex.compile(part.get("pattern", ""))
        if not any("$id" in part or "id" in part for part in parts):  # below which references mean others
            whole = DRAFT202012.create_resource(validator.schema)
            resolver = REGISTRY.with_resource("", whole).resolver()
            for part in parts:
                resolver.lookup(part.get("$ref", "#"))
    except SchemaError as error:
        return f"{error.json_path} of it: {error.message}"[:300]
    except Unresolvable as error:
        return f'"$ref" leads to nothing in it: {error.ref}'[:200]
    except regex.error as error:
        return f"the pattern {error.pattern!r:.100}: {error}"
    except Exception as error:  # noqa: BLE001 - whatever else the library cannot read
        return f"{type(error).__name__}: {error}"[:200]
    return ""


def problem_of_instance(schema: str, instance: str, *, formats: bool = False) -> str:
    """Returns why the instance does not fit, in one line; empty if it does. Both are JSON texts. `formats`:
    these are more than annotations.
    """
    try:
        validator = _validator(schema, formats=formats)
        with localcontext(prec=_PRECISION):
            error = next(validator.iter_errors(_exact(instance)), None)
    except Exception as problem:  # noqa: BLE001 - what the library cannot read, or follow
        return f"they cannot be validated: {type(problem).__name__}"
    return "" if error is None else _DECIMAL.sub(r"\1", f"{error.json_path}: {error.message}")[:300]


def _validator(schema: str, *, formats: bool = False) -> Any:
    """It fetches nothing."""
    from jsonschema import validators
    from jsonschema_specifications import REGISTRY

    form = _exact(schema)
    kind = validators.validator_for(form, default=validators.Draft202012Validator)
    kind = validators.extend(kind, {"pattern": _pattern})
    return kind(form, registry=REGISTRY, format_checker=kind.FORMAT_CHECKER if formats else None)


def _pattern(validator: Any, pattern: str, instance: Any, schema: Schema) -> Iterator[Exception]:
    """As the library's, for patterns of JavaScript: with \\p{…} and named groups."""
    from jsonschema import ValidationError

    if isinstance(instance, str) and not regex.search(pattern, instance):
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


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
