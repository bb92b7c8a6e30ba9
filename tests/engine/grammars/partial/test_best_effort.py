"""Functions that are not strict lose what no grammar keeps, and nothing else; strict ones are refused."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from support.engine import byte_grammars

from millstream_worker.engine.grammars.calls.call_form import HARMONY
from millstream_worker.engine.grammars.grammar_fault import InvalidGrammar
from millstream_worker.engine.grammars.grammar_trial import GrammarTrial
from millstream_worker.engine.grammars.matcher import Matcher

TEXT = {"type": "string", "pattern": "^(?=.*[0-9]).{3,}$"}  # look-ahead: the compiler does not take it


@pytest.fixture(scope="module")
def trial() -> GrammarTrial:
    return GrammarTrial()


def compiled(trial: GrammarTrial, *functions: Any, strict: bool = False) -> Matcher:
    named = ((f"f{place}", json.dumps(schema), strict) for place, schema in enumerate(functions))
    return byte_grammars.compiled(byte_grammars.tools_spec(named), trial.check)


def problem(trial: GrammarTrial, matcher: Matcher, arguments: str, name: str = "f0") -> str | None:
    """Why the call does not fit, at the answer's end; None if the grammar does not accept it."""
    own = matcher.copy()
    if not own.consume(
        list(f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'.encode())
    ):
        return None
    assert own.complete
    return own.partial.problem(own.output, trial.problem) if own.partial else ""


def of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


def test_the_rest_of_a_schema_is_kept(trial: GrammarTrial) -> None:
    matcher = compiled(trial, of(a={"type": "integer", "maximum": 9}, b=TEXT))
    assert problem(trial, matcher, '{"a": 9, "b": "xx1"}') == ""
    assert problem(trial, matcher, '{"a": 10, "b": "xx1"}') is None
    assert problem(trial, matcher, '{"a": 9, "b": "xx1", "c": 1}') is None
    found = problem(trial, matcher, '{"a": 9, "b": "xxx"}')
    assert found is not None
    assert found.startswith("the arguments of f0 do not fit its parameters: $.b: 'xxx' does not match")


@pytest.mark.parametrize(
    "parameters",
    [
        of(a={"type": "array", "items": {"type": "string"}, "uniqueItems": True}),
        of(a={"oneOf": [{"type": "string"}, {"type": "string", "pattern": "a"}]}),
        of(a={"type": "string", "not": {"pattern": "a"}}),
        of(a={"type": "array", "contains": {"const": 1}}),
        of(a={"type": "string", "pattern": "^(?!)$"}),
        of(a={"anyOf": [{"enum": []}, {"not": {}}]}),
        {"type": "object", "patternProperties": {"a": {"type": "integer"}, "b": {"type": "null"}}},
        {"type": "object", "unevaluatedProperties": False, "$dynamicRef": "#x"},
    ],
)
def test_whatever_cannot_be_kept_is_dropped(trial: GrammarTrial, parameters: Any) -> None:
    matcher = compiled(trial, parameters, of(b={"type": "null"}))
    assert matcher.partial is not None
    assert problem(trial, matcher, '{"b": null}', "f1") == ""
    assert problem(trial, matcher, '{"b": 1}', "f1") is None
    with pytest.raises(InvalidGrammar, match="the parameters of f0"):
        compiled(trial, parameters, strict=True)


def test_a_whole_schema_needs_no_check(trial: GrammarTrial) -> None:
    assert compiled(trial, of(a={"type": "integer"}), strict=True).partial is None
    assert compiled(trial, of(a={"type": "integer"})).partial is None


@pytest.mark.slow
def test_many_functions_are_tried_in_bounded_time(trial: GrammarTrial) -> None:
    """Those for which there is no time are of any object, and are checked."""
    slow = of(
        a={"type": "string", "pattern": "^(([a-z])+.)+[A-Z]([a-z])+$"}, **{f"p{n}": TEXT for n in range(9)}
    )
    matcher = compiled(trial, *[slow | {"title": str(number)} for number in range(60)])
    assert matcher.partial is not None
    found = problem(trial, matcher, '{"a": 1}', "f59")
    assert found is None or "f59" in found


@pytest.mark.slow
def test_a_check_without_an_end_is_a_misfit_and_harms_no_other(trial: GrammarTrial) -> None:
    matcher = compiled(trial, of(a={"type": "string", "pattern": "^(?!x)(a|aa)+!$"}))
    found = problem(trial, matcher, json.dumps({"a": "a" * 60}))
    assert found is not None
    assert "takes too much time" in found
    began = time.monotonic()
    assert problem(trial, matcher, json.dumps({"a": "a" * 60})) == found  # and is not tried again
    assert time.monotonic() - began < 1
    assert (
        problem(trial, compiled(trial, of(a={"enum": ["a!"], "not": {"pattern": "b"}})), '{"a": "a!"}') == ""
    )


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ({"$ref": "http://127.0.0.1:9/a.json"}, '"$ref" leads to nothing in it: http://127.0.0.1:9/a.json'),
        ({"$ref": "#/$defs/nothing"}, '"$ref" leads to nothing in it: /$defs/nothing'),
        ({"type": "string", "pattern": "(a"}, "the pattern '(a': missing ) at position 2"),
        ({"type": "any"}, "$.properties.a.type of it: 'any' is not valid"),
    ],
)
def test_what_can_be_neither_kept_nor_validated_is_refused(
    trial: GrammarTrial, part: dict[str, Any], said: str
) -> None:
    """No call could fit: better refused than computed. Nothing is fetched."""
    with pytest.raises(InvalidGrammar) as refused:
        compiled(trial, of(b={"type": "null"}), of(a=part))
    assert said in str(refused.value)
    assert str(refused.value).endswith("(the parameters of f1)")


def test_arguments_are_written_as_templates_write_them(trial: GrammarTrial) -> None:
    matcher = compiled(trial, of(a={"type": "integer"}, b={"type": "array", "items": {"type": "integer"}}))
    assert problem(trial, matcher, '{"a": 1, "b": [1, 2]}') == ""
    for other in (
        '{"a":1, "b": [1, 2]}',
        '{"a": 1,  "b": [1, 2]}',
        '{"a": 1, "b": [1,2]}',
        '{ "a": 1, "b": []}',
    ):
        assert problem(trial, matcher, other) is None


def test_the_validating_library_loads_outside_of_the_bound() -> None:
    answer = GrammarTrial()._asked(json.dumps(['{"type": "object"}', "{}"]))
    assert answer is not None
    assert float(answer.split(" ")[0]) < 0.3  # CPU seconds; loading takes up to two


def test_calls_in_channels_are_checked_behind_their_thoughts(trial: GrammarTrial) -> None:
    named = [("f0", json.dumps(of(a={"type": "integer", "maximum": 9}, b=TEXT)), False)]
    spec = byte_grammars.in_channels(byte_grammars.tools_spec(named, form=HARMONY))
    matcher = byte_grammars.compiled(spec, trial.check)
    for text, found in (("xx1", ""), ("xxx", "the arguments of f0 do not fit its parameters: $.b: 'xxx'")):
        own = matcher.copy()
        said = '#analysis|hm!^assistant#commentary to=functions.f0 %json|{"a": 9, "b": "' + text + '"}'
        assert own.consume(list(said.encode()))
        assert own.complete
        assert own.partial is not None
        problem = own.partial.problem(own.output, trial.problem)
        assert problem.startswith(found)
        assert bool(problem) == bool(found)
