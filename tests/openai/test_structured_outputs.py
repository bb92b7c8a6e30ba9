"""The two ways to ask for a format, and how each wrong field is named; an object back at the end."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, RootModel

from millstream import InvalidRequest, ResponseFormat
from millstream.client.submit.requests import EncodedRequest, draft
from millstream.openai.structured_outputs import asked_format
from millstream.wire.messages import codec
from millstream.wire.messages.job_messages import Request

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


WRONG_FORMATS: list[tuple[Any, str, str]] = [
    ("json", "", "a pydantic model class"),
    (SCHEMA, ".type", "for a schema alone, and all else, use structured_outputs"),
    ({"type": ["text"]}, ".type", "one of text, json_object"),
    ({"type": "json_object", "schema": {}}, ".schema", "not known"),
    ({"type": "json_schema"}, ".json_schema", '"schema"'),
    (openai(TEXT), ".json_schema.schema", "an object"),
    (openai(False), ".json_schema.schema", "no answer can fit"),
    (openai({"a": {1}}), ".json_schema.schema", "as JSON"),
    (openai({"a": "\ud800"}), ".json_schema.schema", "Unicode"),
    (openai({}, stric=True), ".json_schema.stric", "not known"),
    (Callback, "", "has no JSON schema"),
]
WRONG_OUTPUTS: list[tuple[Any, str, str]] = [
    (Invoice, "", "give a mapping"),
    ({}, ".json", "exactly one of json, regex, choice"),
    ({"whitespace_pattern": " "}, ".whitespace_pattern", "one"),
    ({"regex": "a", "choice": ["a"]}, ".choice", "beside structured_outputs.regex"),
    ({"json": "{"}, ".json", "is no JSON"),
    ({"choice": "yes"}, ".choice", "list of texts"),
    ({"choice": [5]}, ".choice", "list of texts"),
    ({"json_object": 1}, ".json_object", "true or false"),
    ({"structural_tag": "{}"}, ".structural_tag", "a grammar"),
    (
        {"json": {}, "disable_additional_properties": True},
        ".disable_additional_properties",
        "into the schema",
    ),
    ({"jsn": {}}, ".jsn", "not known"),
    ({"regex": "a", "disable_any_whitespace": True}, ".disable_any_whitespace", "not for a regex"),
    ({"json": {}, "disable_any_whitespace": 1}, ".disable_any_whitespace", "true or false"),
]
WRONG: list[tuple[dict[str, Any], str, str]] = [
    *(({"response_format": given}, f"response_format{at}", says) for given, at, says in WRONG_FORMATS),
    *(({"structured_outputs": given}, f"structured_outputs{at}", says) for given, at, says in WRONG_OUTPUTS),
    ({"structured_outputs": {"json": {}}, "response_format": openai({})}, "structured_outputs", "beside"),
    ({"structured_outputs": {"regex": "a"}, "ignore_eos": True}, "structured_outputs", "ignore_eos"),
]


@pytest.mark.parametrize(("given", "field", "problem"), WRONG, ids=lambda value: str(value)[:60])
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
