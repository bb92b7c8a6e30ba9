"""Closed schemas take less, and never more; what says something of other names stays open."""

from __future__ import annotations

from typing import Any

import pytest
from support.engine.random_schemas import RandomSchemas, fits

from millstream_worker.engine.grammars.schemas.rewriting.closing import closed
from millstream_worker.engine.grammars.schemas.rewriting.rewrite import rewritten

A = {"type": "object", "properties": {"a": {}}}
NODE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}, "a": {}}}
OTHER = {"a": 1, "zz": 1}


@pytest.mark.parametrize("keyword", ["allOf", "anyOf", "oneOf", "not", "if", "properties", "items"])
def test_a_closed_schema_takes_nothing_more(keyword: str) -> None:
    fewer = 0
    for seed in range(150):
        given = RandomSchemas(seed)
        schema = given.part(keyword, 3)
        shut = closed(schema)
        fewer += shut != schema
        for _ in range(6):
            instance = given.instance()
            assert fits(schema, instance) or not fits(shut, instance), (seed, schema, shut, instance)
            if "unevaluated" not in str(made := rewritten(shut)):
                assert fits(made, instance) == fits(shut, instance), (seed, schema, made, instance)
    assert fewer > 5


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        (A, {"a": 1}, OTHER),
        (A | {"required": ["a"]}, {"a": 1}, OTHER),
        ({"type": "object", "properties": {}}, {}, OTHER),
        ({"properties": {"x": A}}, {"x": {"a": 1}}, {"x": OTHER}),
        ({"properties": {"x": {"type": "array", "items": A}}}, {"x": [{"a": 1}]}, {"x": [OTHER]}),
        ({"properties": {"x": {"anyOf": [A, {"type": "null"}]}}}, {"x": {"a": 1}}, {"x": OTHER}),
        ({"properties": {"x": {"$ref": "#/$defs/d"}}, "$defs": {"d": A}}, {"x": {"a": 1}}, {"x": OTHER}),
        (NODE | {"$defs": {"node": NODE}}, {"next": {"a": 1}}, {"next": OTHER}),
        ({"allOf": [A, {"properties": {"b": {}}}]}, {"a": 1, "b": 2}, OTHER),
        (A | {"anyOf": [{"required": ["a"]}, {"properties": {"b": {}}, "required": ["b"]}]}, {"a": 1}, OTHER),
        (A | {"if": {"required": ["a"]}, "then": {"properties": {"b": {}}}}, {"a": 1, "b": 2}, OTHER),
    ],
)
def test_named_properties_are_all_that_there_are(schema: Any, right: Any, wrong: Any) -> None:
    shut = closed(schema)
    assert fits(shut, right)
    assert fits(schema, wrong)
    assert not fits(shut, wrong)
    assert "unevaluated" not in str(rewritten(shut))


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"properties": {"x": {"type": "object"}}, "additionalProperties": True},
        A | {"additionalProperties": {"type": "integer"}},
        A | {"patternProperties": {"^z": {}}},
        A | {"unevaluatedProperties": True},
        A | {"minProperties": 2},
        A | {"required": ["a", "zz"]},
        {"allOf": [A, {"required": ["zz"]}]},
    ],
)
def test_what_says_something_of_other_names_stays_open(schema: Any) -> None:
    assert fits(closed(schema), OTHER)


def test_a_definition_that_another_schema_extends_stays_open() -> None:
    """Closed, nothing would fit both."""
    schema = {
        "properties": {"x": {"allOf": [{"$ref": "#/$defs/d"}, {"properties": {"b": {}}}]}},
        "$defs": {"d": A},
    }
    assert fits(closed(schema), {"x": {"a": 1, "b": 2}})
    assert not fits(closed(schema), {"x": {"a": 1, "zz": 2}})


def test_what_says_which_values_do_not_fit_stays_as_it_is() -> None:
    for keyword in ("not", "if", "contains", "propertyNames"):
        assert closed({keyword: A})[keyword] == A
    overlapping = {"oneOf": [A, {"type": "object", "required": ["zz"]}]}
    assert not fits(closed(overlapping), OTHER)
