"""Instances are validated by the whole schema, in its own draft, and numbers are read as they are written."""

from __future__ import annotations

import json
from typing import Any

import pytest

from millstream_worker.engine.grammars.schemas.instance_check import problem_of_instance

CENTS = {"type": "number", "multipleOf": 0.01}
EARLY = {"$schema": "http://json-schema.org/draft-04/schema#", "maximum": 5, "exclusiveMaximum": True}


@pytest.mark.parametrize(
    ("schema", "instance", "problem"),
    [
        (CENTS, "0.07", ""),
        (CENTS, "0.075", "$: 0.075 is not a multiple of 0.01"),
        ({"maximum": 5}, "1e400", "$: 1E+400 is greater than the maximum of 5"),
        ({"minimum": 5}, "-1e1000000000000000000", "$: -Infinity is less than the minimum of 5"),
        ({"maximum": 5}, "0.1e-10000000000000000000", ""),
        ({"type": "integer"}, "1.0", ""),
        ({"type": "integer"}, "1e300", ""),
        ({"type": "integer"}, "1.5", "$: 1.5 is not of type 'integer'"),
        (EARLY, "5", "$: 5 is greater than or equal to the maximum of 5"),
        (
            {"properties": {"a": {"uniqueItems": True}}},
            '{"a": [1, 1]}',
            "$.a: [1, 1] has non-unique elements",
        ),
        ({"format": "ipv4"}, '"x"', ""),
        ({"$ref": "http://127.0.0.1:9/a"}, "1", "they cannot be validated: "),
        ({"pattern": r"^(?<y>\p{L}+)$"}, '"aä"', ""),
        ({"pattern": r"^\p{L}+$"}, '"a1"', "$: 'a1' does not match"),
        ({"pattern": "(a"}, '"a"', "they cannot be validated: "),
        ({"type": "no type"}, "1", "they cannot be validated: "),
    ],
)
def test_an_instance_fits_or_has_a_problem(schema: Any, instance: str, problem: str) -> None:
    found = problem_of_instance(json.dumps(schema), instance)
    assert found.startswith(problem) if problem else not found
    assert "\n" not in found


def test_formats_may_count() -> None:
    assert "is not a" in problem_of_instance('{"format": "ipv4"}', '"x"', formats=True)
