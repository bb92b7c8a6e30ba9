"""Calls of tools and thoughts before answers, as a whole engine over a tiny random model writes them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from support.engine import whole_engine
from support.engine.byte_grammars import compiled, is_cut, tools_spec, whole_calls
from support.engine.whole_engine import engine_on
from support.models import tokenizers
from support.models.spelling import spelling_checkpoint
from tokenizers import Tokenizer

from millstream_worker.engine.engine import Engine
from millstream_worker.engine.protocol.request import EngineRequest, GrammarSpec, SamplingSpec

PROMPT = tuple(range(30, 49))
SCHEMAS: dict[str, Any] = {
    "get": {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"],
            "additionalProperties": False},
    "get_all": {"properties": {"n": {"type": "integer", "maximum": 99, "minimum": 0}}, "required": ["n"],
                "additionalProperties": False},
    "stop": None,
}  # fmt: skip
PLATE = GrammarSpec("regex", "[A-C]{2}-[0-9]{3}")


@pytest.fixture(scope="module")
def plain_engine(tmp_path_factory: pytest.TempPathFactory) -> Engine[Any]:
    folder = tmp_path_factory.mktemp("models")
    return engine_on("cpu", spelling_checkpoint(folder, max_position_embeddings=1024), cuda_graphs="off")


def tools(names: Iterable[str] = SCHEMAS, **form: Any) -> GrammarSpec:
    functions = ((name, json.dumps(SCHEMAS[name]) if SCHEMAS[name] else "", True) for name in names)
    return tools_spec(functions, **form)


def own(tokenizer: Tokenizer) -> tuple[int, int]:
    """The tokens around a call."""
    return tokenizer.token_to_id("<tool_call>"), tokenizer.token_to_id("</tool_call>")


def thinking(grammar: GrammarSpec, tokenizer: Tokenizer, *, is_open: bool = False) -> GrammarSpec:
    begin = None if is_open else tokenizer.token_to_id("<think>")
    return replace(grammar, thought_begin=begin, thought_end=tokenizer.token_to_id("</think>"))


def asked(
    handle: int, grammar: GrammarSpec, tokenizer: Tokenizer, *, tokens: int = 400, **more: Any
) -> EngineRequest:
    end = (tokenizer.token_to_id("<end>"),)
    options: dict[str, Any] = {"temperature": 1.5, "seed": handle, "end_ids": end} | more.pop("sampling", {})
    return EngineRequest(handle, PROMPT, tokens, SamplingSpec(**options), grammar=grammar, **more)


def answers(
    engine: Engine[Any], tokenizer: Tokenizer, *requests: EngineRequest
) -> dict[int, tuple[str, str, list[int]]]:
    """By handle: text with its special tokens, why it ended, and its tokens."""
    made = whole_engine.answers(engine, requests)
    tokens = {handle: made.tokens.get(handle, []) for handle in sorted(made.reasons)}
    return {
        handle: (tokenizer.decode(ids, skip_special_tokens=False), made.reasons[handle], ids)
        for handle, ids in tokens.items()
    }


def check_call(name: str, arguments: str) -> None:
    given = json.loads(arguments)
    match name:
        case "get":
            assert given in ({"a": "x"}, {"a": "y"})
        case "get_all":
            assert list(given) == ["n"]
            assert 0 <= given["n"] <= 99
        case "stop":
            assert given == {}
        case other:
            pytest.fail(f"no such function: {other}")


@pytest.mark.parametrize("words", [True, False])
def test_a_required_call_is_of_one_of_the_functions(
    engine: Engine[Any], plain_engine: Engine[Any], tokenizer: Tokenizer, words: bool
) -> None:
    """Also where a name begins like another; with the tokens around it, or where a tokenizer has none."""
    given, spelled = tools(tokens=own(tokenizer) if words else (None, None)), tokenizers.build("byte-level")
    requests = [asked(handle, given, tokenizer) for handle in range(8)]
    called = set()
    made = answers(engine if words else plain_engine, tokenizer if words else spelled, *requests)
    for text, reason, ids in made.values():
        [(name, arguments)] = whole_calls(text, *SCHEMAS)
        check_call(name, arguments)
        called.add(name)
        assert (text[:11], text[-12:], reason) == ("<tool_call>", "</tool_call>", "complete")
        assert (ids[0] == own(tokenizer)[0]) == words
    assert len(called) > 1


def test_several_calls_are_lines_below_each_other(engine: Engine[Any], tokenizer: Tokenizer) -> None:
    end, line = tokenizer.token_to_id("<end>"), tokenizer.encode("\n").ids[0]
    bias = {"logit_bias": ((end, -3.0), (line, 3.0))}
    requests = [
        asked(handle, tools(many=True, tokens=own(tokenizer)), tokenizer, tokens=900, sampling=bias)
        for handle in range(4)
    ]
    counts = []
    for text, reason, _ in answers(engine, tokenizer, *requests).values():
        found = whole_calls(text, *SCHEMAS)
        counts.append(len(found))
        for name, arguments in found:
            check_call(name, arguments)
        assert reason in ("stop", "length")
        assert is_cut(text, *SCHEMAS) <= (reason == "length")
    assert max(counts) > 1


def test_a_free_answer_is_text_until_a_call_begins(engine: Engine[Any], tokenizer: Tokenizer) -> None:
    begin = own(tokenizer)[0]
    likely, never = {"logit_bias": ((begin, 6.0),)}, {"logit_bias": ((begin, -100.0),)}
    spec = tools(free=True, tokens=own(tokenizer))
    made = answers(
        engine,
        tokenizer,
        *(asked(handle, spec, tokenizer, sampling=likely) for handle in range(6)),
        asked(6, spec, tokenizer, sampling=never, tokens=40),
    )
    texts = [text for text, _, _ in made.values()]
    assert "<tool_call>" not in texts.pop()
    whole = [text for text in texts if not is_cut(text, *SCHEMAS)]
    assert len(whole) > 2
    for text in whole:
        found = whole_calls(text, *SCHEMAS)
        assert len(found) == text.count("<tool_call>") == 1, "not many"
        check_call(*found[0])


ONE = '<tool_call>\n{"name": "get", "arguments": {"a": "x"}}\n</tool_call>'


@pytest.mark.parametrize(
    ("text", "fits_one", "fits_many"),
    [
        ("a < b", True, True),
        (f"Well: {ONE}", True, True),
        (f"Well: {ONE}, so", False, False),
        (f"{ONE}\n{ONE}", False, True),
        (f"{ONE} and {ONE}", False, False),
        (f"{ONE} <tool_call> none", False, False),
        ('<tool_call>\n{"name": "odd', False, False),
    ],
)
def test_a_free_answer_spells_calls_that_have_no_marks(text: str, fits_one: bool, fits_many: bool) -> None:
    for many, fits in ((False, fits_one), (True, fits_many)):
        assert compiled(tools(free=True, many=many)).consume(list(text.encode())) == fits


@pytest.mark.parametrize("is_open", [True, False])
def test_a_thought_comes_before_the_answer(engine: Engine[Any], tokenizer: Tokenizer, is_open: bool) -> None:
    begin, end = tokenizer.token_to_id("<think>"), tokenizer.token_to_id("</think>")
    bias = {"logit_bias": ((begin, 5.0), (end, 4.0))}
    specs = [
        thinking(spec, tokenizer, is_open=is_open) for spec in (PLATE, tools(["get"], tokens=own(tokenizer)))
    ]
    requests = [asked(handle, specs[handle % 2], tokenizer, sampling=bias) for handle in range(8)]
    whole = []
    for handle, (text, reason, ids) in answers(engine, tokenizer, *requests).items():
        if reason == "length":
            continue
        thought, mark, answer = text.rpartition("</think>")
        whole.append(mark)
        assert (reason, begin in ids[1:], "</think>" in thought) == ("complete", False, False)
        assert bool(mark) == (is_open or ids[0] == begin)
        [form, found] = (
            [PLATE.text, answer.lstrip("\n")]
            if handle % 2 == 0
            else ["get", whole_calls(answer, *SCHEMAS)[0][0]]
        )
        assert re.fullmatch(form, found)
    assert whole.count("</think>") > 2


def test_a_thought_that_is_cut_is_no_answer(engine: Engine[Any], tokenizer: Tokenizer) -> None:
    never = {"logit_bias": ((tokenizer.token_to_id("</think>"), -100.0),)}
    spec = thinking(PLATE, tokenizer, is_open=True)
    [(text, reason, ids)] = answers(
        engine, tokenizer, asked(1, spec, tokenizer, tokens=30, sampling=never)
    ).values()
    assert (reason, len(ids), "</think>" in text) == ("length", 30, False)


def test_a_resumed_call_and_thought_go_on_where_they_were(engine: Engine[Any], tokenizer: Tokenizer) -> None:
    bias = {"logit_bias": ((tokenizer.token_to_id("</think>"), 5.0),)}
    spec = thinking(tools(tokens=own(tokenizer)), tokenizer, is_open=True)
    [(_, reason, whole)] = answers(engine, tokenizer, asked(3, spec, tokenizer, sampling=bias)).values()
    assert reason == "complete"
    for cut in (1, len(whole) // 2, len(whole) - 1):
        again = asked(3, spec, tokenizer, sampling=bias, outputs=(tuple(whole[:cut]),))
        assert answers(engine, tokenizer, again)[3][2] == whole[cut:]


def test_unsupported_parameters_are_refused_by_function_name(
    engine: Engine[Any], tokenizer: Tokenizer
) -> None:
    form = json.loads(tools(["get"]).text)
    form["functions"].append(["odd", '{"properties": {"a": {"uniqueItems": true}}}', True])
    refused = answers(engine, tokenizer, asked(1, GrammarSpec("tools", json.dumps(form)), tokenizer))[1][1]
    assert refused.startswith("tools: tools: ")
    assert 'the keyword "uniqueItems" cannot be kept' in refused
    assert "(the parameters of odd, at /properties/a); give items an enum" in refused
