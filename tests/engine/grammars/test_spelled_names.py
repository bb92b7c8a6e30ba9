"""A complete answer fits its schema, however names and texts are spelled: wherever a grammar writes JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from jsonschema.validators import Draft202012Validator
from support.engine.byte_grammars import by_schema, compiled, tools_spec

from millstream.wire.messages.bounds.grammar_bounds import schemas_in
from millstream_worker.engine.grammars.grammar_fault import InvalidGrammar
from millstream_worker.engine.grammars.matcher import Matcher
from millstream_worker.engine.grammars.nested_schemas import Schema, with_schemas
from millstream_worker.engine.grammars.schemas.pattern_characters import UNWRITABLE
from millstream_worker.engine.protocol.request import GrammarSpec

NAMES = ["a", "b", "ab", "é", "😀", "a/b", 'a"b', "a\\b", "a\nb", "$ref", "a\u0001", "a\u007f"]
A_NUMBER = {"type": "object", "properties": {"a": {"type": "integer"}}}
ESCAPED = r'{"\u0061":"x"}'


def is_complete(matcher: Matcher, text: str) -> bool:
    followed = matcher.copy()
    return followed.consume(list(text.encode())) and followed.complete


def fits(schema: object, instance: object) -> bool:
    return bool(Draft202012Validator(schema).is_valid(instance))


def plain(letter: str) -> str:
    return json.dumps(letter, ensure_ascii=False)[1:-1]


def by_code(letter: str) -> str:
    """As JSON may spell it: each half of a surrogate pair by its number."""
    halves = letter.encode("utf-16-be").hex()
    return "".join(f"\\u{halves[place : place + 4]}" for place in range(0, len(halves), 4))


VALUES = st.sampled_from([0, 1, 7, -1, "x", "y", "", None, True, [], [1], ["x"]])
SCALARS = st.sampled_from(
    [
        {"type": "integer"}, {"type": "string"}, {"type": "string", "maxLength": 1}, {"const": "x"},
        {"enum": [1, "y"]}, {"type": "number", "minimum": 1}, {"type": "null"}, True, False,
        {"type": "array", "items": {"type": "integer"}},
    ]
)  # fmt: skip
SOME_NAMES = st.lists(st.sampled_from(NAMES), unique=True, max_size=3)


@st.composite
def objects(draw: st.DrawFn, inner: st.SearchStrategy[Any] = SCALARS) -> dict[str, Any]:
    """Schemas of objects, with whichever of the keywords that look at names."""
    made: dict[str, Any] = {"type": "object"}
    keywords: dict[str, st.SearchStrategy[Any]] = {
        "properties": st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
        "patternProperties": st.dictionaries(
            st.sampled_from(["^a", "b$", "^.$", "[^ab]"]), inner, max_size=1
        ),
        "additionalProperties": inner,
        "required": SOME_NAMES,
        "minProperties": st.just(1),
        "maxProperties": st.integers(0, 2),
        "propertyNames": st.sampled_from([{"pattern": "^a"}, {"maxLength": 1}]),
        "dependentRequired": st.dictionaries(st.sampled_from(NAMES), SOME_NAMES, max_size=1),
        "dependentSchemas": st.dictionaries(st.sampled_from(NAMES), inner, max_size=1),
        "unevaluatedProperties": st.booleans(),
    }
    for name in draw(st.lists(st.sampled_from(list(keywords)), unique=True, max_size=3)):
        made[name] = draw(keywords[name])
    return made


@st.composite
def schemas(draw: st.DrawFn) -> dict[str, Any]:
    """Of objects in objects, in lists, behind references, and joined."""
    outer, other = draw(objects(SCALARS | objects())), draw(objects())
    form = draw(st.sampled_from(["plain", "items", "$ref", "anyOf", "allOf", "enum"]))
    if form == "items":
        return {"type": "array", "items": outer, "minItems": 1, "maxItems": 1}
    if form == "$ref":
        return {"$ref": "#/$defs/a", "$defs": {"a": outer}}
    if form == "enum":
        return outer | {"enum": [{"a": 1}, {"b": "x", "é": [1]}, {"a\u0001": 7}]}
    return outer if form == "plain" else {form: [outer, other]}


@st.composite
def instances(draw: st.DrawFn) -> Any:
    inner = VALUES | st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=2)
    return draw(st.dictionaries(st.sampled_from([*NAMES, "c", "abc"]), inner, max_size=3))


@st.composite
def spellings(draw: st.DrawFn, value: Any) -> str:
    """A text for a value, each character of its names and texts spelled in some way."""
    if isinstance(value, dict):
        pairs = (f"{draw(spellings(name))}:{draw(spellings(inner))}" for name, inner in value.items())
        return f"{{{','.join(pairs)}}}"
    if isinstance(value, list):
        return f"[{','.join(draw(spellings(inner)) for inner in value)}]"
    if not isinstance(value, str):
        return json.dumps(value)
    ways = st.sampled_from([plain, by_code, lambda letter: by_code(letter).upper().replace("\\U", "\\u")])
    return f'"{"".join(draw(ways)(letter) for letter in value)}"'


@pytest.mark.slow
@given(schemas(), st.data())
def test_a_complete_answer_fits_however_it_is_spelled(schema: dict[str, Any], data: st.DataObject) -> None:
    try:
        matcher = by_schema(schema)
    except InvalidGrammar:
        assume(False)
    for _ in range(3):
        instance = data.draw(instances())
        instance = [instance] if schema.get("type") == "array" else instance
        for text in (data.draw(spellings(instance)), everywhere(by_code, instance)):
            if is_complete(matcher, text):
                assert fits(schema, json.loads(text)), (schema, text)


def everywhere(spell: Any, value: Any) -> str:
    """The text of a value with all names spelled in one way, and its other texts plainly."""
    if isinstance(value, dict):
        pairs = (f'"{"".join(map(spell, name))}":{everywhere(spell, one)}' for name, one in value.items())
        return f"{{{','.join(pairs)}}}"
    if isinstance(value, list):
        return f"[{','.join(everywhere(spell, one) for one in value)}]"
    return json.dumps(value, ensure_ascii=False)


@given(objects(), st.data())
def test_a_valid_answer_with_plain_names_is_complete(schema: dict[str, Any], data: st.DataObject) -> None:
    """Declared names come first, in the schema's order. One that needs no other is not declared by that."""
    try:
        matcher = by_schema(schema)
    except InvalidGrammar:
        assume(False)
    needed = schema.get("dependentRequired", {}).items()
    depending = [one for name, names in needed if names for one in (name, *names)]
    declared = [*schema.get("properties", {}), *schema.get("required", []), *depending]
    drawn = data.draw(instances())
    instance = {name: drawn[name] for name in [*declared, *drawn] if name in drawn}
    written = all(name in declared or not UNWRITABLE & set(map(ord, name)) for name in instance)
    inner = [name for value in instance.values() if isinstance(value, dict) for name in value]
    written = written and not any(UNWRITABLE & set(map(ord, name)) for name in inner)
    if written and fits(schema, instance):
        assert is_complete(matcher, everywhere(plain, instance)), (schema, instance)


@pytest.mark.parametrize("text", [ESCAPED, r'{"b":{"\u0062":1}}', r'{"b":"\u0001"}', r'{"b":"\u000a"}'])
@pytest.mark.parametrize("compact", [True, False])
@pytest.mark.parametrize(
    ("kind", "schema"),
    [("json_object", ""), ("json_schema", json.dumps(A_NUMBER)), ("json_schema", "true"),
     ("json_schema", "{}"),
     ("json_schema", json.dumps(A_NUMBER | {"x-guidance": {"json_allowed_escapes": "u"}})),
     ("json_schema", json.dumps(A_NUMBER | {"x-guidance": {"json_allow_general_unicode_escapes": True}}))],
)  # fmt: skip
def test_no_json_has_escapes_by_code(kind: Any, schema: str, compact: bool, text: str) -> None:
    matcher = compiled(GrammarSpec(kind, schema, compact=compact))
    assert not is_complete(matcher, text)
    assert is_complete(matcher, r'{"a":1,"b":{"\n":"\t\\\""}}')


@pytest.mark.parametrize("free", [True, False])
@pytest.mark.parametrize(
    "parameters", [json.dumps(A_NUMBER), json.dumps({"properties": A_NUMBER["properties"]})]
)
def test_arguments_of_a_call_fit_however_they_are_spelled(parameters: str, free: bool) -> None:
    matcher = compiled(tools_spec([("f", parameters, True)], free=free))
    cases = (
        (r'{"\u0061": 1}', False),
        ('{"a": 1}', True),
        ('{"a": "x"}', False),
        (r'{"a": 1, "\u0061": 1}', False),
    )
    for arguments, right in cases:
        call = f'<tool_call>\n{{"name": "f", "arguments": {arguments}}}\n</tool_call>'
        assert matcher.copy().consume(list(call.encode())) == right, arguments


@pytest.mark.parametrize(
    "lark",
    [
        "start: %json {}",
        "start: %json\n\n{}",
        'start: %json {} | "%json"',
        "start: %lark {\n start: %json {} \n}",
        'start: /[%json {"k":"]x/ | %json {} | /["}]/',
        'start: @thing\nthing: %json {} # "\n',
        'start: "\\"" | "\\\\" | %json {} // "',
        "%llguidance {}\nstart: %json {}",
        'start: SOME? %json {}\nSOME: %regex {"substring_words": "%json {"}',
    ],
)
def test_the_schemas_in_a_grammar_bar_them_too(lark: str) -> None:
    lark = lark.replace("%json {}", f"%json {json.dumps(A_NUMBER)}").replace("@thing", "thing")
    matcher = compiled(GrammarSpec("grammar", lark))
    assert is_complete(matcher, '{"a":1,"b":"x"}')
    assert not is_complete(matcher, ESCAPED)


def test_what_only_looks_like_a_schema_stays_as_it_is() -> None:
    for lark in (
        'start: "%json {}"',
        "# %json {}\nstart: /a/",
        'start: /%json {"/',
        'start: </"> "%json {}"',
    ):
        assert with_schemas(lark, lambda schema: {"changed": True}) == lark
    changed = with_schemas('a: %json {"b":\n1} c\nd: %json true', lambda schema: schema | {"c": 2})
    assert changed == 'a: %json {\n"b": 1, "c": 2} c\nd: %json {"c": 2}'


PIECES = (
    *('"', "/", "\\", "#", "//", "\n", " ", "<", ">", "<a>", "<[1]>", "a", "%", "%json", "%json ", "%regex"),
    *("%llguidance", "%lark {", "{}", "[]", "true", "}", '{"a": "%json {}"}', '"%json {}"', "/%json {}/"),
)


@given(pieces=st.lists(st.sampled_from(PIECES), max_size=12))
def test_grammar_bounds_see_every_schema_the_engine_sees(pieces: list[str]) -> None:
    lark = f"start: {''.join(pieces)}"
    seen: list[Schema] = []

    def see(schema: Schema) -> Schema:
        seen.append(schema)
        return schema

    try:
        with_schemas(lark, see)
    except ValueError:  # the engine refuses it
        assume(False)
    found = [{} if one is True else one for one in schemas_in(lark)[1]]
    assert [one for one in found if isinstance(one, dict)] == seen


@pytest.mark.parametrize("lark", ['start: "a', "start: /a", "start: <a b>", "start: %json {a}"])
def test_a_grammar_whose_texts_have_no_end_is_refused(lark: str) -> None:
    with pytest.raises(InvalidGrammar):
        compiled(GrammarSpec("grammar", lark))


def test_a_name_with_a_control_character_is_spelled_as_declared() -> None:
    schema = {"type": "object", "properties": {"a\u0001": {"type": "integer"}}, "required": ["a\u0001"]}
    matcher = by_schema(schema)
    assert bytes(matcher.forced()) == b'{"a\\u0001":'
    assert is_complete(matcher, r'{"a\u0001":1}')
    assert not is_complete(matcher, r'{"a\u0001":1,"\u0061\u0001":"x"}')
