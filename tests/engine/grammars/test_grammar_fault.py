"""The error of a grammar that cannot be compiled names the place and the reason."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from llguidance import LLMatcher
from support.engine.byte_grammars import TOKENIZER, compiled, tools_spec

from millstream_worker.engine.grammars.grammar_fault import InvalidGrammar, reason_of
from millstream_worker.engine.protocol.request import GrammarSpec

DEEP = {"type": "array", "items": {"type": "string", "pattern": "^(?=.*\\d).{8,}$"}}
GROUP = {"type": "string", "pattern": "(a"}
GOOD = {"type": "string", "pattern": "a"}
LOOK = "look-around, including look-ahead and look-behind, is not supported"


def check(grammar: str) -> float:
    """As the trial's process does."""
    matcher = LLMatcher(TOKENIZER, grammar, log_level=0)
    if matcher.is_error():
        raise InvalidGrammar(matcher.get_error())
    return 0.0


def problem(kind: Any, text: Any) -> str:
    spec = GrammarSpec(kind, text if isinstance(text, str) else json.dumps(text))
    with pytest.raises(InvalidGrammar) as refused:
        compiled(spec, check)
    return str(refused.value)


SCHEMAS: list[tuple[Any, str, str]] = [
    (GROUP, r"regex parse error in '\(a': unclosed group", "/"),
    (
        {"properties": {"ok": GOOD, "deep": DEEP}},
        f"regex parse error in .*: {LOOK}",
        "/properties/deep/items",
    ),
    ({"properties": {"a": {"anyOf": [GOOD, {"uniqueItems": True}]}}}, "uniqueItems", "/properties/a/anyOf/1"),
    ({"$defs": {"d": DEEP}, "properties": {"a": {"$ref": "#/$defs/d"}}}, LOOK, "/$defs/d/items"),
    ({"properties": {"a": {"$ref": "#/$defs/d"}}}, r"'/\$defs/d' does not exist", "/properties/a"),
    ({"properties": {"a": {"patternProperties": {"(a": {}}}}}, "'\\(a': unclosed group", "/properties/a"),
    ({"properties": {"a": {"additionalProperties": GROUP}}}, "group", "/properties/a/additionalProperties"),
]


@pytest.mark.parametrize(("schema", "reason", "place"), SCHEMAS)
def test_a_fault_of_a_schema_has_reason_and_place(schema: Any, reason: str, place: str) -> None:
    ending = f" (at {place})"
    found = problem("json_schema", schema)
    assert re.search(f"{reason}.*$", found.removesuffix(ending)), found
    assert found.endswith(ending)
    functions = [("good", json.dumps({"properties": {"a": GOOD}}), True), ("odd", json.dumps(schema), True)]
    found = problem("tools", tools_spec(functions, free=True).text)
    assert re.search(reason, found), found
    assert found.endswith(f" (the parameters of odd, at {place})")


@pytest.mark.parametrize(
    ("kind", "text", "says"),
    [
        ("regex", "(?=a)b", LOOK),
        ("regex", "(a\nb", "unclosed group"),
        ("grammar", "start: A\nA: /(?=a)/", rf"at 2\(4\): .*\(\?=a\).*{LOOK}"),
        ("grammar", f"start: %json {json.dumps(GROUP)}", "JSON schema: .*'\\(a': unclosed group"),
        ("grammar", "start: foo", 'unknown name: "foo"'),
    ],
)
def test_other_grammars_name_the_pattern_or_the_line(kind: str, text: str, says: str) -> None:
    found = problem(kind, text)
    assert re.search(says, found), found
    assert "\n" not in found


def test_a_long_pattern_does_not_hide_the_reason() -> None:
    assert problem("regex", "(" + "a" * 10_000).endswith("unclosed group")
    assert reason_of("") == "it cannot be compiled"


def test_the_place_is_not_searched_for_longer_than_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream_worker.engine.grammars.grammar_compiler.SEARCH_CPU_S", -1.0)
    assert problem("json_schema", DEEP).endswith(LOOK)
