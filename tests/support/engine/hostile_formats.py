"""Response formats that nobody means well with: too deep, too large, too many ways, no way at all. Each may
be refused with a reason, end as failed, or work; it may not hurt anybody else.
"""

from __future__ import annotations

import json
from typing import Any

from millstream.wire.messages.response_format import MAX_BYTES, MAX_CHOICES

Format = dict[str, Any]  # the fields of a ResponseFormat

_STRING = {"type": "string"}


def schema(value: Any) -> Format:
    return {"type": "json_schema", "text": value if isinstance(value, str) else json.dumps(value)}


def regex(pattern: str) -> Format:
    return {"type": "regex", "text": pattern}


def grammar(*lines: str) -> Format:
    return {"type": "grammar", "text": "\n".join(lines)}


def _optional(count: int, each: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {f"key{number}": each for number in range(count)}}


def _doubled(depth: int) -> Any:
    """Written once, and meant 2^depth times."""
    levels: dict[str, Any] = {
        f"d{level}": {"type": "array", "prefixItems": [{"$ref": f"#/$defs/d{level + 1}"}] * 2, "minItems": 2}
        for level in range(depth)
    }
    return {"$ref": "#/$defs/d0", "$defs": {**levels, f"d{depth}": _STRING}}


def _enum(count: int) -> Any:
    return {"enum": [f"v{number}" for number in range(count)]}


HOSTILE: dict[str, Format] = {
    # large
    "nested 5,000 deep": schema('{"items":' * 5000 + "{}" + "}" * 5000),
    "nested 60 deep": schema('{"items":' * 60 + "{}" + "}" * 60),
    "a byte more than 256 KiB": schema({"description": "x" * (MAX_BYTES + 1 - len('{"description": ""}'))}),
    "256 KiB": schema({"description": "x" * (MAX_BYTES - len('{"description": ""}'))}),
    "an enum of 20,000": schema(_enum(20_000)),
    "20,000 choices": {"type": "choice", "text": json.dumps([f"c{number}" for number in range(20_000)])},
    "the most choices": {"type": "choice", "text": json.dumps([f"c{n}" for n in range(MAX_CHOICES)])},
    "3,000 optional properties": schema(_optional(3000, _STRING)),
    "3,000 required properties": schema(
        {**_optional(3000, {"type": "integer"}), "required": [f"key{number}" for number in range(3000)]}
    ),
    "a million items": schema({"type": "array", "items": _STRING, "minItems": 10**6}),
    "a string of 10^9": schema({"type": "string", "minLength": 10**9}),
    "2^40 times the same": schema(_doubled(40)),
    "2^12 times the same": schema(_doubled(12)),
    "300 wide alternatives": schema({"anyOf": [_optional(9, _enum(4)) for _ in range(300)]}),
    "a number of 400 digits": schema('{"type": "integer", "minimum": 1' + "0" * 400 + "}"),
    "a multiple of 1e-300": schema({"type": "number", "multipleOf": 1e-300}),
    # no way
    "false": schema("false"),
    "an object of false": schema({"type": "object", "properties": {"a": False}, "required": ["a"]}),
    "no string and no number": schema({"allOf": [_STRING, {"type": "number"}]}),
    "more than the most": schema({"type": "integer", "minimum": 5, "maximum": 4}),
    "longer than the longest": schema({"type": "string", "minLength": 9, "maxLength": 3}),
    "an empty enum": schema({"enum": []}),
    "nothing but itself": schema({"$ref": "#"}),
    "itself in a loop": schema(
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}
    ),
    "itself without an end": schema(
        {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}
    ),
    "itself with an end": schema({"type": "object", "properties": {"a": {"$ref": "#"}}}),
    # of another kind
    "a remote $ref": schema({"$ref": "https://example.org/schema.json"}),
    "a $ref to a file": schema({"$ref": "file:///etc/passwd"}),
    "a $ref to nothing": schema({"$ref": "#/$defs/nothing"}),
    "no JSON": schema('{"type": '),
    "a number": schema("12"),
    "NaN": schema('{"const": NaN}'),
    "an unknown type": schema({"type": "text"}),
    "an unknown format": schema({"type": "string", "format": "licence-plate"}),
    "llguidance's own options": schema(
        {"x-guidance": {"lenient": True, "whitespace_pattern": ".*"}, "not": {}}
    ),
    "a lone surrogate": schema('{"const": "\\ud800"}'),
    "a lone surrogate as it is": schema('{"const": "\ud800"}'),
    "a key of NUL": schema({"type": "object", "properties": {"\0": _STRING}, "required": ["\0"]}),
    # patterns
    "repetitions of repetitions": regex("(a{1,1000}){1,1000}"),
    "repetitions thrice": regex("((a{1,1000}){1,1000}){1,1000}"),
    "that in a schema": schema({"type": "string", "pattern": "^(a{1,1000}){1,1000}$"}),
    "catastrophic": regex("(a+)+b"),
    "catastrophic, anchored": schema({"type": "string", "pattern": "^(([a-z])+.)+[A-Z]([a-z])+$"}),
    "a window of 200": regex("(.*)x.{200}y"),
    "look-around": regex("(?=a)(?!b)."),
    "a back reference": regex(r"(a)\1"),
    "unbalanced": regex("(a"),
    "nothing matches": regex("[^\\s\\S]"),
    "the empty text": regex(""),
    "only the end": regex("()"),
    "a large class": regex(r"\p{L}{1,500}\p{N}{1,500}"),
    # grammars
    "ambiguous": grammar("start: a*", 'a: "x" | "x" a | a a | "x" "x"'),
    "left recursive": grammar("start: start start | start | /x/"),
    "without an end": grammar('start: "x" start'),
    "of nothing": grammar('start: ""', 'a: "b"'),
    "a missing rule": grammar("start: nothing"),
    "no grammar": grammar("nonsense"),
    "a regex in a grammar": grammar("start: /(a{1,1000}){1,1000}/"),
    "2^30 ways": grammar("start: a0", *(f"a{n}: a{n + 1} a{n + 1}" for n in range(30)), 'a30: "x"?'),
    "30 intersections": grammar("start: T", "T: " + " & ".join(f"/(.*x.{{{n}}})*/" for n in range(1, 30))),
    "JSON in a grammar": grammar('start: %json { "type": "text" }'),
    "10,000 rules": grammar("start: r0", *(f'r{n}: "x" r{n + 1}' for n in range(9_000)), 'r9000: "x"'),
}
