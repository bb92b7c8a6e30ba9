"""Shapes that would take unbounded time and memory to compile or to follow, and those of honest use."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from millstream.wire.messages.bounds.format_bounds import least_of
from millstream.wire.messages.job_messages import Request
from millstream.wire.messages.validation_errors import invalid_request


def schema(value: Any) -> dict[str, str]:
    return {"type": "json_schema", "text": json.dumps(value, separators=(",", ":"))}


def regex(text: str) -> dict[str, str]:
    return {"type": "regex", "text": text}


def grammar(*lines: str) -> dict[str, str]:
    return {"type": "grammar", "text": "\n".join(lines)}


def optional(count: int) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{number}": {"type": "integer"} for number in range(count)}}


def named(count: int) -> dict[str, Any]:
    return {"type": "object", "patternProperties": {f"^a{n}.*b{n}$": {} for n in range(count)}}


def doubled(depth: int, last: str) -> dict[str, str]:
    return grammar("start: T0", *(f"T{n}: T{n + 1} T{n + 1}" for n in range(depth)), f"T{depth}: {last}")


HOSTILE = {
    "pattern": (schema({"properties": {"a": {"pattern": "a?" * 8000}}}), " has 8000 parts"),
    "regex": (regex("a?" * 16_000), "has 16000 parts that may be left out or repeated"),
    "empty alternatives": (regex("(a|)" * 600), "has 600 parts"),
    "empty groups": (regex("(a|(?:b{0}))" * 600), "has 1200 parts"),
    "a bracket that closes nothing": (regex("]" + "a?" * 16_000), "has 16000 parts"),
    "a long text after it": (regex("]a{20000}"), "has 20001 characters"),
    "large classes": (regex(r"\p{L}" * 20_000), "or are classes such as"),
    "many patterns": (
        schema({"anyOf": [{"pattern": "a?" * 400}] * 6}),
        "2400 here and before, and may be 2000",
    ),
    "a pattern's repeat": (
        schema({"pattern": "^(a{1000}){9}$"}),
        "has 9002 characters with its repeats, and may have 512",
    ),
    "a regex's repeat": (regex("a{1000000000}"), "has 1000000000 characters"),
    "its repeats": (regex("(((a{99}b){99}[(]){99}){9}"), "has 8821791 characters"),
    "verbose": (regex("(?x)(a {1000}) {1000}"), "has the flag x"),
    "whitespace": ({"type": "json_object", "whitespace_pattern": " {9999}"}, "has 9999"),
    "patternProperties": (schema({"$defs": {"x": named(65)}}), "at /$defs/x: patternProperties are 65"),
    "in parts": (schema({"anyOf": [named(33), named(33)]}), "patternProperties are 66 here and before"),
    "optional properties": (schema(optional(501)), "at /: has 501 properties that are not required"),
    "of all objects": (schema({"anyOf": [optional(500)] * 5}), "not required are 2500 here and before"),
    "multiples": (
        schema({"anyOf": [{"multipleOf": 99_991 + 2 * n} for n in range(20)]}),
        "multiple of multipleOf here and before is 1000000000",
    ),
    "a multiple beyond floating point": (
        schema({"multipleOf": 10**400}),
        "multiple of multipleOf here and before is 1000000000",
    ),
    "a multiple as long as can be read": (schema({"multipleOf": -(10**4200)}), "use rounder numbers"),
    "of fractions": (schema({"type": "number", "multipleOf": 0.123457}), "here and before is 123457"),
    "a long constant": (
        schema({"items": {"const": "a" * 513}, "minItems": 10**6}),
        "at /items/const: the text 'aaa",
    ),
    "one inside": (schema({"enum": [5, {"b": ["a" * 513]}]}), "has 513 characters, and may have 512"),
    "a long name": (schema({"properties": {"a" * 513: {}}}), "at /properties: the text 'aaa"),
    "a long choice": ({"type": "choice", "text": json.dumps(["a" * 16_385, "b"])}, "has a text of 16385"),
    "chained terminals": (
        grammar("start: T0", *(f'T{n}: T{n + 1} "a"' for n in range(10_000)), 'T10000: "a"'),
        "has 10002 rules",
    ),
    "doubled terminals": (doubled(13, '"a"?'), "T4 has 512 parts"),
    "doubled texts": (doubled(20, '"ab"'), "T11 has 1024 characters"),
    "repeated terminals": (grammar("start: A", "A: B{500}", 'B: "a"~500'), "A has 250000 characters"),
    "itself": (grammar("start: A", 'A: "a" B', "B: A"), "has a terminal in itself: "),
    "a pattern in a grammar": (grammar("start: /a{9999}/"), "has 9999 characters"),
    "its parts": (grammar(f"start: /{'a?' * 501}/"), "has 501 parts"),
    "a schema in a grammar": (
        grammar(f"start: %json {json.dumps(optional(501))}"),
        "at /%json/0: has 501 properties",
    ),
    "a pattern before a schema": (grammar("start: /a{9999}/ B", "B: %json {}"), "has 9999 characters"),
    "no schema in a grammar": (grammar("start: %json {a}"), "has a %json that is none"),
    "a schema behind one in a text": (
        grammar('start: "%json {" /"/', f"| %json {json.dumps(optional(501))}"),
        "at /%json/0: has 501 properties",
    ),
    "behind an empty value": (
        grammar(f"start: %json true %json {json.dumps(optional(501))}"),
        "at /%json/1: has 501 properties",
    ),
    "attributes": (grammar("start: T0", 'T0[x="]"]: T1{300}', 'T1.5: "aa"'), "T0 has 600 characters"),
    "GBNF": (grammar(f'root ::= "{"a" * 513}"'), "has 513 characters"),
}

HONEST = {
    "an enum": schema({"enum": [f"text number {number}" for number in range(10_000)]}),
    "choices": {"type": "choice", "text": json.dumps([f"text number {number}" for number in range(10_000)])},
    "a paragraph to choose": {"type": "choice", "text": json.dumps(["a" * 16_384])},
    "200 properties": schema({**optional(200), "required": [f"p{number}" for number in range(200)]}),
    "300 optional ones": schema(optional(300)),
    "5,000 required ones": schema({**optional(5000), "required": [f"p{number}" for number in range(5000)]}),
    "20 patternProperties": schema(named(20)),
    "alternatives": regex(f"({'|'.join(f'word{number}' for number in range(10_000))})"),
    "alternatives in a schema": schema({"pattern": f"^({'|'.join(map(str, range(5000)))})$"}),
    "a phone number": regex(r"\(?[0-9]{3}\)?[- .]?[0-9]{3}[- .]?[0-9]{4}"),
    "IPv6": schema({"pattern": f"^({'(([0-9A-Fa-f]{1,4}:){7}([0-9A-Fa-f]{1,4}|:))|' * 20}x)$"}),
    "a long string": schema({"minLength": 10**6, "maxLength": 10**9}),
    "a description": schema({"description": "long " * 10_000, "type": "string"}),
    "properties named as keywords": schema(
        {"properties": {key: {} for key in ("pattern", "enum", "properties", "multipleOf")}}
    ),
    "seconds of a day": schema({"type": "integer", "multipleOf": 86_400}),
    "strange multiples": schema(
        {"allOf": [{"multipleOf": one} for one in (0, True, "1", -5, 1e300 / 1e299)]}
    ),
    "cents": schema({"type": "number", "multipleOf": 0.01}),
    "a Lark grammar": grammar(
        "start: (date | NAME)+",
        'date: D{4} "-" D{2} "-" D{2}',
        "D: /[0-9]/",
        "NAME: /[a-z]{1,80}/",
        "%ignore / +/",
    ),
    "schemas in a grammar": grammar(
        "start: %json {} | %json", ' {"properties": {"a": {"pattern": "^a{9}$"}}} NAME', "NAME: /[a-z]+/"
    ),
    "what only looks like a schema": grammar(
        'start: "%json {" | /%json {"/ | </"> | E # %json {a',
        'E: %regex {"substring_words": "%json {"} // %json {',
    ),
    "in a GBNF grammar, too": grammar('root ::= "%json {" | ["] # %json {'),
    "keywords": grammar(
        "start: WORD", f"WORD: {' | '.join(f'{chr(34)}word{n}{chr(34)}' for n in range(1500))}"
    ),
    "a GBNF grammar": grammar('root ::= pair (", " pair){2,5}', 'pair ::= [a-z]+ "=" ("yes" | "no")'),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_an_unbounded_pattern_is_refused_with_field_and_bound(name: str) -> None:
    given, problem = HOSTILE[name]
    with pytest.raises(ValidationError) as caught:
        Request.model_validate({"prompt": "a", "response_format": given})
    wrong = invalid_request(caught.value)
    assert problem in wrong.problem
    assert wrong.field == f"response_format.{'text' if 'text' in given else 'whitespace_pattern'}"
    assert len(wrong.problem) < 600


@pytest.mark.parametrize("name", HONEST)
def test_what_people_write_is_taken(name: str) -> None:
    Request.model_validate({"prompt": "a", "response_format": HONEST[name]})


@pytest.mark.parametrize(
    ("pattern", "least"),
    [
        ("", 0), ("abc", 3), (r"a\(b\{9}", 6), ("a{5}", 5), ("a{2,9}b{0,3}c{4,}", 7),
        ("(ab){3}(?:c|def){2}", 12), ("((a{10}){10}){10}", 1000), ("a{10}{10}", 100), ("[(a{9}]{3}", 3),
        ("[]a{9}]{3}", 3), ("[^]a{9}]{3}", 3), ("([[[])]]]a{100}){100}", 10_100),
        ("(a{100}[[(]]){100}", 10_100), ("(a{100}", 100), ("a{100})", 101), ("a|b{7}|c", 7),
        ("(ab)?c*d+{9}", 12),
    ],
)  # fmt: skip
def test_the_length_of_what_a_pattern_asks_for(pattern: str, least: int) -> None:
    assert least_of(pattern) == least
