"""References are followed inside the schema only, in a bounded number of steps."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from millstream_worker.engine.grammars.schemas.rewriting.closing import closed
from millstream_worker.engine.grammars.schemas.rewriting.rewrite import rewritten
from millstream_worker.engine.grammars.schemas.rewriting.scope import Scope, Unknown


def test_a_reference_is_a_pointer_into_the_schema() -> None:
    schema = {"$defs": {"a/b": {"type": "null"}, "l": {"anyOf": [True, {"const": 1}]}}}
    assert Scope(schema).resolve("#/$defs/a~1b") == {"type": "null"}
    assert Scope(schema).resolve("#/$defs/l/anyOf/1") == {"const": 1}
    assert Scope(schema).resolve("#") is schema


@pytest.mark.parametrize(
    "reference",
    [
        "#/$defs/none",
        "#anchor",
        "https://example.org/a",
        "other.json#/$defs/a",
        5,
        "#/$defs/a",
        "#/$defs/a/9",
    ],
)
def test_other_references_are_unknown(reference: object) -> None:
    with pytest.raises(Unknown):
        Scope({"$defs": {"a": [True]}}).resolve(reference)


def test_below_an_identifier_a_reference_means_another_place() -> None:
    with pytest.raises(Unknown):
        Scope({"$defs": {"a": {"$id": "x", "$defs": {}}, "b": {}}}).resolve("#/$defs/b")


def doubled(depth: int, keyword: str) -> dict[str, Any]:
    """Written once, meant 2^depth times."""
    levels: dict[str, Any] = {
        f"d{level}": {keyword: [{"$ref": f"#/$defs/d{level + 1}"}] * 2} for level in range(depth)
    }
    return {"$ref": "#/$defs/d0", "$defs": {**levels, f"d{depth}": {"type": "string"}}}


HOSTILE = {
    "itself": {"not": {"$ref": "#"}, "unevaluatedProperties": False, "oneOf": [{"$ref": "#"}, {"$ref": "#"}]},
    "a ring": {
        "oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}],
        "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
    },
    **{f"2^30 of {one}": {"not": doubled(30, one)} | doubled(30, one) for one in ("allOf", "anyOf", "oneOf")},
    **{
        f"2^30 of {one}, unevaluated": doubled(30, one) | {"unevaluatedProperties": False, "properties": {}}
        for one in ("allOf", "anyOf", "oneOf")
    },
    "wide options": {"oneOf": [{"properties": {f"p{n}": {}}, "required": [f"p{n}"]} for n in range(300)]},
    "many values": {"type": "array", "items": {"enum": list(range(200))}, "uniqueItems": True},
    "deep": json.loads('{"not":' * 90 + "{}" + "}" * 90),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_no_schema_takes_long(name: str) -> None:
    began = time.process_time()
    for made in (rewritten(HOSTILE[name]), closed(HOSTILE[name])):
        assert len(json.dumps(made)) < 2_000_000
    assert time.process_time() - began < 5
