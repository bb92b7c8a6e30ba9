"""Bounds of any size are kept: no number beyond one is accepted, and those that programs write are taken."""

from __future__ import annotations

import json

import pytest
from llguidance import LLMatcher
from support.engine.byte_grammars import TOKENIZER

from millstream_worker.engine.grammars.schemas.rewriting.rewrite import rewritten

LOW, HIGH = -(2**63), 2**63 - 1


def accepted(schema: object, *texts: str) -> list[bool]:
    assert isinstance(schema, dict)
    form = LLMatcher.grammar_from_json_schema(json.dumps(rewritten(schema)), overrides={"lenient": False})
    matcher = LLMatcher(TOKENIZER, form, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    found = []
    for text in texts:
        own = matcher.deep_copy()
        found.append(own.try_consume_tokens(list(text.encode())) == len(text) and own.is_accepting())
    return found


@pytest.mark.parametrize(
    ("low", "high"), [(LOW, HIGH), (0, HIGH), (LOW, 0), (-(10**30), 10**30), (0, 2**64), (-1e300, 1e300)]
)
@pytest.mark.parametrize("kind", ["integer", "number"])
def test_bounds_of_any_size_are_taken(kind: str, low: float, high: float) -> None:
    schema = {"type": kind, "minimum": low, "maximum": high}
    assert accepted(schema, "0", str(int(low) * 10 - 1), str(int(high) * 10 + 1)) == [True, False, False]


@pytest.mark.parametrize("bound", [2**53 + number for number in range(1, 9)])
def test_no_number_beyond_a_bound_that_is_no_binary_number(bound: int) -> None:
    """The compiler rounds to the nearest one: 2^53 + 7 to 2^53 + 8."""
    near = [bound - 1, bound, bound + 1, bound + 2]
    for name, fits in (
        ("maximum", lambda value: value <= bound),
        ("minimum", lambda value: value >= bound),
        ("exclusiveMaximum", lambda value: value < bound),
        ("exclusiveMinimum", lambda value: value > bound),
    ):
        found = accepted({"type": "integer", name: bound}, *map(str, near))
        assert all(fits(value) for value, taken in zip(near, found, strict=True) if taken), (name, found)
        assert accepted({"type": "integer", name: bound}, str(bound - 50), str(bound + 50)).count(True) == 1


@pytest.mark.parametrize("keyword", ["maxLength", "maxItems", "maxProperties"])
def test_counts_of_any_size_are_taken(keyword: str) -> None:
    for count in (2**31, 2**63, 2**64, 1e300):
        assert accepted({keyword: count}, '"x"', "[1]", '{"a":1}') == [True] * 3
