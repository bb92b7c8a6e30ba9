"""The compiler of grammars, apart from an engine."""

from __future__ import annotations

import json
from typing import Any

import pytest
from llguidance import LLTokenizer

from millstream.wire.messages.bounds.format_bounds import MAX_OPTIONAL, MAX_TEXT
from millstream_worker.engine.brain.grammars.compiling import GrammarCompiler, InvalidGrammar
from millstream_worker.engine.brain.grammars.matcher import Matcher
from millstream_worker.engine.protocol.request import EngineRequest, GrammarSpec


def test_a_vocabulary_that_cannot_be_followed_is_looked_at_once() -> None:
    """It takes seconds, in which the other requests with grammars wait."""
    looks = []

    def tokenizer() -> LLTokenizer:
        looks.append(1)
        raise InvalidGrammar("it has no end")

    compiler = GrammarCompiler(tokenizer, lambda grammar: None)
    for pattern in ("a", "a", "b"):
        with pytest.raises(InvalidGrammar, match="it has no end"):
            compiler.matchers(EngineRequest(1, (1,), 5, grammar=GrammarSpec("regex", pattern)))
    assert len(looks) == 1


def compiled(schema: object) -> Matcher:
    spec = GrammarSpec("json_schema", json.dumps(schema), compact=True)
    return GrammarCompiler(lambda: LLTokenizer("byte"), lambda grammar: None).matchers(
        EngineRequest(1, (1,), 5, grammar=spec)
    )[0]


def test_a_text_without_an_end_that_leaves_no_choice_is_cut() -> None:
    """It is spelled out at once, in the batch's loop: without a limit it is 500 MB."""
    constant = "a" * MAX_TEXT
    matcher = compiled({"type": "array", "items": {"const": constant}, "minItems": 10**6})
    assert 0 < len(matcher.forced()) < 1e6


def test_the_largest_object_of_optional_properties_can_be_followed() -> None:
    names = {f"p{number}": {"type": "integer"} for number in range(MAX_OPTIONAL)}
    matcher = compiled({"type": "object", "properties": names, "additionalProperties": False})
    assert matcher.consume(list(b'{"p0":1,"p250":2,"p499":'))
    matcher.forced()
    assert matcher.failure is None


def test_an_output_that_the_grammar_did_not_allow_is_not_continued() -> None:
    """An earlier attempt's engine had another version of the compiler."""
    request = EngineRequest(1, (1,), 5, grammar=GrammarSpec("regex", "[0-9]+"), outputs=(tuple(b"1a"),))
    compiler = GrammarCompiler(lambda: LLTokenizer("byte"), lambda grammar: None)
    with pytest.raises(InvalidGrammar, match="choice 0 does not fit after 2 tokens of an earlier attempt"):
        compiler.matchers(request)


@pytest.mark.parametrize(
    ("kind", "text"),
    [("choice", '["no", "yes"]'), ("grammar", 'start: "yes" | "no"'), ("grammar", 'root ::= "yes" | "no"'),
     ("regex", "yes|no"), ("json_schema", '{"enum": ["yes"]}')],
)  # fmt: skip
def test_a_thought_may_come_before_each_kind_of_answer(kind: Any, text: str) -> None:
    spec = GrammarSpec(kind, text, thought_end=ord("!"))
    compiler = GrammarCompiler(lambda: LLTokenizer("byte"), lambda grammar: None)
    [matcher] = compiler.matchers(EngineRequest(1, (1,), 5, grammar=spec)).values()
    answer = '"yes"' if kind == "json_schema" else "yes"
    assert matcher.consume(list(b"hm!"))
    assert not matcher.copy().consume(list(b"maybe"))
    assert matcher.consume(list(answer.encode()))
    assert matcher.complete
