"""The two ways to ask for a format, and how each wrong field is named; an object back at the end."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, RootModel

from millstream import InvalidRequest, ResponseFormat
from millstream.client.submitting.requests import EncodedRequest, draft
from millstream.client.submitting.structured_outputs import asked_format
from millstream.wire.messages import codec
from millstream.wire.messages.messages import Request

SCHEMA = {"type": "object", "properties": {"b": {"type": "string"}, "a": {"type": "integer"}}}
TEXT = '{"type":"object","properties":{"b":{"type":"string"},"a":{"type":"integer"}}}'


class Line(BaseModel):
    item: str
    cents: int


class Invoice(BaseModel):
    number: str
    currency: Literal["EUR", "CHF"] = "EUR"
    lines: list[Line]


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    lines: dict[str, int]


class Callback(BaseModel):
    call: Callable[[], None]


def openai(schema: Any, **more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, **more}}


def drafted(**fields: Any) -> EncodedRequest:
    return draft({"prompt": "a", **fields}, 1_700_000_000_000, 1024**2)


def json_schema(text: str, **more: Any) -> ResponseFormat:
    return ResponseFormat(type="json_schema", text=text, **more)


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": None, "structured_outputs": None}, None),
        ({"response_format": {"type": "json_object"}}, ResponseFormat(type="json_object")),
        ({"response_format": openai(SCHEMA, strict=True, description="d")}, json_schema(TEXT)),
        ({"response_format": openai(True, strict=None)}, json_schema("true")),
        ({"response_format": json_schema(TEXT, compact=True)}, json_schema(TEXT, compact=True)),
        ({"structured_outputs": {"json": SCHEMA}}, json_schema(TEXT)),
        ({"structured_outputs": {"json": '{ "b": 1 }'}}, json_schema('{ "b": 1 }')),
        ({"structured_outputs": {"json_object": True}}, ResponseFormat(type="json_object")),
        ({"structured_outputs": {"regex": r"\d+"}}, ResponseFormat(type="regex", text=r"\d+")),
        (
            {"structured_outputs": {"choice": ["jä", "nein"]}},
            ResponseFormat(type="choice", text='["jä","nein"]'),
        ),
        ({"structured_outputs": {"grammar": "s: /a/"}}, ResponseFormat(type="grammar", text="s: /a/")),
        (
            {"structured_outputs": {"json": SCHEMA, "regex": None, "json_object": False,
                                    "disable_any_whitespace": True, "disable_fallback": True}},
            json_schema(TEXT, compact=True),
        ),
        (
            {"structured_outputs": {"json": SCHEMA, "whitespace_pattern": " "},
             "response_format": {"type": "text"}},
            json_schema(TEXT, whitespace_pattern=" "),
        ),
    ],
)  # fmt: skip
def test_what_is_asked_for(given: dict[str, Any], made: ResponseFormat | None) -> None:
    assert asked_format(given) == made
    sent = drafted(**given)
    assert codec.decode(Request, sent.payload).response_format == made
    assert sent.version == (1 if made is None else 3)


@pytest.mark.parametrize(
    "given",
    [
        {"response_format": Invoice},
        {"response_format": openai(Invoice)},
        {"structured_outputs": {"json": Invoice}},
    ],
)
def test_a_model_class_is_its_schema(given: dict[str, Any]) -> None:
    """Of objects that have its fields, in its order, and no others."""
    made = asked_format(given)
    assert made is not None
    schema = json.loads(made.text)
    assert list(schema["properties"]) == ["number", "currency", "lines"]
    assert schema["required"] == ["number", "lines"]
    assert [schema["additionalProperties"], schema["$defs"]["Line"]["additionalProperties"]] == [False, False]


def test_a_model_may_have_more_fields_where_it_says_so() -> None:
    made = asked_format({"response_format": Open})
    assert made is not None
    schema = json.loads(made.text)
    assert schema["additionalProperties"] is True
    assert schema["properties"]["lines"]["additionalProperties"] == {"type": "integer"}
    listed = asked_format({"response_format": RootModel[list[int]]})
    assert listed is not None
    assert "additionalProperties" not in json.loads(listed.text)


@pytest.mark.parametrize(
    ("given", "field", "problem"),
    [
        ({"response_format": "json"}, "response_format", "a pydantic model class"),
        ({"response_format": SCHEMA}, "response_format.type", "for a schema alone, and all else, use"),
        ({"response_format": {"type": ["text"]}}, "response_format.type", "one of text, json_object"),
        ({"response_format": {"type": "json_object", "schema": {}}}, "response_format.schema", "not known"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", '"schema"'),
        ({"response_format": openai(TEXT)}, "response_format.json_schema.schema", "an object"),
        ({"response_format": openai(False)}, "response_format.json_schema.schema", "no answer can fit"),
        ({"response_format": openai({"a": {1}})}, "response_format.json_schema.schema", "as JSON"),
        ({"response_format": openai({"a": "\ud800"})}, "response_format.json_schema.schema", "Unicode"),
        ({"response_format": openai({}, stric=True)}, "response_format.json_schema.stric", "not known"),
        ({"response_format": Callback}, "response_format", "has no JSON schema"),
        ({"structured_outputs": Invoice}, "structured_outputs", "give a mapping"),
        ({"structured_outputs": {}}, "structured_outputs.json", "exactly one of json, regex, choice"),
        ({"structured_outputs": {"whitespace_pattern": " "}}, "structured_outputs.whitespace_pattern", "one"),
        (
            {"structured_outputs": {"regex": "a", "choice": ["a"]}},
            "structured_outputs.choice",
            "beside structured_outputs.regex",
        ),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json", "is no JSON"),
        ({"structured_outputs": {"choice": "yes"}}, "structured_outputs.choice", "list of texts"),
        ({"structured_outputs": {"choice": [5]}}, "structured_outputs.choice", "list of texts"),
        ({"structured_outputs": {"json_object": 1}}, "structured_outputs.json_object", "true or false"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag", "a grammar"),
        (
            {"structured_outputs": {"json": {}, "disable_additional_properties": True}},
            "structured_outputs.disable_additional_properties",
            '"additionalProperties": false into the schema',
        ),
        ({"structured_outputs": {"jsn": {}}}, "structured_outputs.jsn", "not known"),
        (
            {"structured_outputs": {"regex": "a", "disable_any_whitespace": True}},
            "structured_outputs.disable_any_whitespace",
            "not for a regex",
        ),
        (
            {"structured_outputs": {"json": {}, "disable_any_whitespace": 1}},
            "structured_outputs.disable_any_whitespace",
            "true or false",
        ),
        (
            {"structured_outputs": {"json": {}}, "response_format": {"type": "json_object"}},
            "structured_outputs",
            "beside response_format",
        ),
        ({"structured_outputs": {"regex": "a"}, "ignore_eos": True}, "structured_outputs", "ignore_eos"),
    ],
    ids=lambda value: str(value)[:60],
)  # fmt: skip
def test_what_is_wrong_is_named(given: dict[str, Any], field: str, problem: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        drafted(**given)
    assert caught.value.field == field
    assert problem in caught.value.problem
    assert len(str(caught.value)) < 500


def test_a_schema_that_is_nested_too_deep() -> None:
    deep: dict[str, Any] = {}
    for _ in range(20_000):
        deep = {"not": deep}
    with pytest.raises(InvalidRequest, match=r"^response_format\.json_schema\.schema: "):
        drafted(response_format=openai(deep))
