"""The compiler of grammars, apart from an engine."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from llguidance import LLTokenizer
from support.engine.byte_grammars import by_schema, byte_compiler, compiled, in_channels, tools_spec

from millstream.wire.messages.bounds.format_bounds import MAX_OPTIONAL, MAX_TEXT
from millstream_worker.engine.grammars.calls.call_form import HARMONY
from millstream_worker.engine.grammars.grammar_compiler import GrammarCompiler
from millstream_worker.engine.grammars.grammar_fault import InvalidGrammar
from millstream_worker.engine.protocol.request import EngineRequest, GrammarSpec


def test_a_vocabulary_that_cannot_be_followed_is_looked_at_once() -> None:
    """It takes seconds, in which the other requests with grammars wait."""
    looks = []

    def tokenizer(ends: tuple[int, ...]) -> LLTokenizer:
        looks.append(1)
        raise InvalidGrammar("it has no end")

    compiler = GrammarCompiler(tokenizer, lambda grammar: 0.0)
    for pattern in ("a", "a", "b"):
        with pytest.raises(InvalidGrammar, match="it has no end"):
            compiler.matchers(EngineRequest(1, (1,), 5, grammar=GrammarSpec("regex", pattern)))
    assert len(looks) == 1


def test_a_text_without_an_end_that_leaves_no_choice_is_cut() -> None:
    """It is spelled out at once, in the batch's loop: without a limit it is 500 MB."""
    constant = "a" * MAX_TEXT
    matcher = by_schema({"type": "array", "items": {"const": constant}, "minItems": 10**6})
    assert 0 < len(matcher.forced()) < 1e6


def test_the_largest_object_of_optional_properties_compiles() -> None:
    names = {f"p{number}": {"type": "integer"} for number in range(MAX_OPTIONAL)}
    matcher = by_schema({"type": "object", "properties": names, "additionalProperties": False})
    assert matcher.consume(list(b'{"p0":1,"p250":2,"p499":'))
    matcher.forced()
    assert matcher.failure is None


def test_an_output_outside_the_grammar_is_not_continued() -> None:
    """An earlier attempt's engine had another version of the compiler."""
    request = EngineRequest(1, (1,), 5, grammar=GrammarSpec("regex", "[0-9]+"), outputs=(tuple(b"1a"),))
    with pytest.raises(InvalidGrammar, match="choice 0 does not fit after 2 tokens of an earlier attempt"):
        byte_compiler().matchers(request)


@pytest.mark.parametrize(
    ("kind", "text"),
    [("choice", '["no", "yes"]'), ("grammar", 'start: "yes" | "no"'), ("grammar", 'root ::= "yes" | "no"'),
     ("regex", "yes|no"), ("json_schema", '{"enum": ["yes"]}')],
)  # fmt: skip
def test_a_thought_may_come_before_each_kind_of_answer(kind: Any, text: str) -> None:
    matcher = compiled(GrammarSpec(kind, text, thought_end=ord("!")))
    answer = '"yes"' if kind == "json_schema" else "yes"
    assert matcher.consume(list(b"hm!"))
    assert not matcher.copy().consume(list(b"maybe"))
    assert matcher.consume(list(answer.encode()))
    assert matcher.complete


def test_a_thought_may_come_before_calls_or_a_format() -> None:
    """Both have rules of their own around others."""
    answer = GrammarSpec("json_schema", '{"enum": ["yes"]}')
    spec = replace(tools_spec([("get", "", False)], free=True, answer=answer), thought_end=ord("!"))
    for said in ('hm!"yes"', 'hm!<tool_call>\n{"name": "get", "arguments": {}}\n</tool_call>'):
        matcher = compiled(spec)
        assert matcher.consume(list(said.encode()))
        assert matcher.complete
    assert not compiled(spec).consume(list(b"hm!no"))


def test_text_before_calls_spells_none_of_their_tags() -> None:
    spec = tools_spec([("get", "", False)], free=True, tokens=(ord("^"), ord("~")))
    assert compiled(spec).consume(list(b"a < b > c"))
    for tag in (b"<tool_call>", b"</tool_call>"):
        assert not compiled(spec).consume(list(b"a " + tag))


THOUGHTS = ("", "#analysis|hm!^assistant", "#analysis|a final word!^assistant#commentary|b!^assistant")


def ends(spec: GrammarSpec, said: str) -> bool:
    """True if the grammar accepts the output, as a whole one."""
    matcher = compiled(spec)
    return matcher.consume(list(said.encode())) and matcher.complete


@pytest.mark.parametrize("thought", THOUGHTS)
def test_an_answer_in_channels_is_final_or_a_call(thought: str) -> None:
    yes = GrammarSpec("json_schema", '{"enum": ["yes"]}')
    get = [("get", '{"type": "object", "properties": {"a": {"type": "integer"}}}', True)]
    formed = in_channels(yes)
    final, call = f'{thought}#final|"yes"', f'{thought}#commentary to=functions.get %json|{{"a": 1}}'
    assert ends(formed, final)
    assert not ends(formed, f'{thought}"yes"')
    assert not ends(formed, call)
    required, free, either = (
        in_channels(tools_spec(get, form=HARMONY, **more)) for more in ({}, {"free": True}, {"answer": yes})
    )
    assert [ends(spec, call) for spec in (required, free, either)] == [True, True, True]
    assert [ends(spec, final) for spec in (required, either)] == [False, True]
    assert compiled(free).consume(list(f"{thought}#final|any text".encode()))
    assert not compiled(free).consume(list(f"{thought}#final|<|channel|>commentary to=functions.".encode()))
    assert not compiled(free).consume(list(f"{thought}any text".encode()))
    assert not compiled(required).consume(list(f"{thought}#commentary to=functions.other".encode()))


def test_a_begun_thought_in_channels_goes_on() -> None:
    spec = replace(in_channels(GrammarSpec("regex", "yes")), thought_begin=None)
    assert ends(spec, "hm!^assistant#final|yes")
    assert not ends(spec, "#final|yes")


def test_an_answer_without_channels_goes_on_so() -> None:
    """An earlier worker has begun it."""
    spec = in_channels(GrammarSpec("json_schema", '{"enum": ["yes"]}'))
    request = EngineRequest(1, (1,), 5, grammar=spec, outputs=(tuple(b'"ye'),))
    [matcher] = byte_compiler().matchers(request).values()
    assert matcher.consume(list(b's"'))
    assert matcher.complete


def test_the_search_for_the_bad_function_has_one_time_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other requests wait for it: with a bound for each it took minutes."""
    for name in ("WHOLE_CPU_S", "SEARCH_CPU_S"):  # of what comes before: is one of them kept by itself?
        monkeypatch.setattr(f"millstream_worker.engine.grammars.partial.best_effort.{name}", -1.0)
    tried = []

    def check(grammar: str) -> float:
        tried.append(grammar)
        if '"lark_grammar": "' in grammar:  # of all functions together
            raise InvalidGrammar("it takes more than 2 s")
        return 0.4

    spec = tools_spec((f"f{number}", "{}", True) for number in range(128))
    with pytest.raises(InvalidGrammar, match=r"than 2 s \(at fault is none of the functions before f5;"):
        compiled(spec, check)
    assert len(tried) == 2 + 5  # all, twice; by themselves


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("grammar", 'start: A\nA: "a" | /<[1]>/ REST // <[2]>\nREST: /[b<[3]>]+/ | "<[4]>"'),
        ("grammar", 'start: %json {"enum": ["<[1]>"]}'),
        ("json_schema", '{"type": "object", "properties": {"<[1]>": {}, "<[2]>": {}}}'),
        ("regex", "a<[1]>"),
    ],
)
def test_the_tried_grammar_differs_only_in_surrounding_tokens(kind: Any, text: str) -> None:
    tried: list[str] = []
    for end in (None, 100):
        compiled(GrammarSpec(kind, text, thought_end=end), lambda grammar: tried.append(grammar) or 0.0)
    [alone], [frame, behind] = (json.loads(grammar)["grammars"] for grammar in tried)
    assert behind == alone | {"name": "behind_thought"}
    assert "<[100]>" not in frame["lark_grammar"]
    assert "thought: INSIDE /x/ " in frame["lark_grammar"]
    assert str(alone).count("<[") == text.count("<[")


def test_a_token_named_by_id_is_tried_as_a_letter() -> None:
    tried: list[str] = []
    spec = GrammarSpec("grammar", 'start: "a" <[100]> # <[1]>')
    compiled(spec, lambda grammar: tried.append(grammar) or 0.0)
    assert json.loads(tried[0])["grammars"] == [{"lark_grammar": 'start: "a" /x/ # <[1]>'}]


def test_an_answer_of_an_earlier_worker_goes_on_as_that_allowed() -> None:
    """Those had more white space, and calls with names that nobody named."""
    form = json.dumps({"properties": {"a": {"type": "integer"}}, "required": ["a"]})
    for spec, begun in (
        (GrammarSpec("json_schema", form), '{"a" :\n\n \n1'),
        (tools_spec([("f", form, True)]), '<tool_call>\n{"name": "f", "arguments": {"a":1,  "other"'),
    ):
        matchers = byte_compiler().matchers(
            EngineRequest(1, (1,), 99, grammar=spec, outputs=(tuple(begun.encode()),), choices=2)
        )
        end = b"  }" if spec.type == "json_schema" else b": 1  }}\n</tool_call>"
        assert matchers[0].consume(list(end))
        assert matchers[0].complete
        assert not matchers[1].consume(list(begun.encode()))
