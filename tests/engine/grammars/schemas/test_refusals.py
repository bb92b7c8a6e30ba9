"""A refusal of a schema names its path, the keyword, and what to write in its place."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.engine.byte_grammars import byte_compiler

from millstream_worker.engine.grammars.grammar_thread import GrammarThread
from millstream_worker.engine.grammars.grammar_trial import GrammarTrial
from millstream_worker.engine.grammars.schemas.refusals import remedy_of, reworded
from millstream_worker.engine.protocol.outputs import Refused
from millstream_worker.engine.protocol.request import EngineRequest, GrammarSpec


@pytest.fixture(scope="module")
def trial() -> GrammarTrial:
    return GrammarTrial()


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ({"uniqueItems": True, "items": {"type": "string"}},
         'the keyword "uniqueItems" cannot be kept (at /properties/a); give items an enum'),
        ({"not": {"pattern": "a"}},
         'the keyword "not" cannot be kept (at /properties/a); say what is wanted'),
        ({"if": {"pattern": "a"}, "then": {"minLength": 3}},
         'the keyword "if" cannot be kept (at /properties/a); write the cases as anyOf'),
        ({"contains": {"const": 1}},
         'the keyword "contains" cannot be kept (at /properties/a); bound the list'),
        ({"oneOf": [{"pattern": "a"}, {"pattern": "b"}]},
         'the options of "oneOf" may overlap, which cannot be kept (at /properties/a); give each a constant'),
        ({"type": "integer", "minimum": 5, "maximum": 4}, "no value fits: "),
        ({"patternProperties": {"a": {"type": "null"}, "b": {"type": "string"}}},
         'patterns of "patternProperties" overlap: /a/ and /b/ (at /properties/a); write them so'),
        ({"$ref": "https://example.org/a"},
         '"$ref" leads out of the schema, to https://example.org/a (at /properties/a); write what is meant'),
        ({"$ref": "#/$defs/none"}, "does not exist (at /properties/a); correct the reference"),
        ({"pattern": "(?=a)b"}, "is not supported (at /properties/a); write the pattern without"),
        ({"pattern": "(a"}, "unclosed group (at /properties/a); correct the pattern"),
        ({"type": "number", "multipleOf": 0.123456789123}, "too many digits"),
        ({"properties": {"x": {}, "y": {}}, "minProperties": 2},
         'beside properties that may be left out (at /properties/a); make those required'),
        ({"$dynamicRef": "#x"}, 'the keyword "$dynamicRef" cannot be kept (at /properties/a); write $ref'),
    ],
)  # fmt: skip
def test_it_names_path_keyword_and_remedy(trial: GrammarTrial, part: Any, said: str) -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "string"}, "a": part}, "required": ["a"]}
    grammar = GrammarSpec("json_schema", json.dumps(schema))
    thread = GrammarThread(byte_compiler(trial.check))
    thread.put(EngineRequest(1, (1,), 5, grammar=grammar))
    while not (taken := thread.take()):
        pass
    [done] = taken
    assert isinstance(done.matchers, Refused)
    assert said in done.matchers.message
    assert "change it" not in done.matchers.message


def test_other_messages_stay_and_are_to_be_changed() -> None:
    assert reworded("something else") == "something else"
    assert remedy_of("something else") == "change it"
