"""Answers whose functions a grammar keeps in part end when their arguments are checked, by a whole engine."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from typing import Any

import pytest
from support.engine.byte_grammars import tools_spec, whole_calls
from support.engine.whole_engine import Answers, answers
from tokenizers import Tokenizer

from millstream_worker.engine.engine import Engine
from millstream_worker.engine.grammars.schemas.instance_check import problem_of_instance
from millstream_worker.engine.protocol.request import EngineRequest, SamplingSpec

PROMPT = tuple(range(30, 49))
LETTER = {"enum": ["a", "b"], "not": {"pattern": "a"}}  # the grammar keeps the enum
PARAMETERS = json.dumps({"type": "object", "properties": {"x": LETTER}, "required": ["x"]})
MISFIT = "the arguments of pick do not fit its parameters: $.x: 'a' should not be valid under"


def asked(
    handle: int, tokenizer: Tokenizer, *, choices: int = 1, many: bool = False, **more: Any
) -> EngineRequest:
    tokens = tokenizer.token_to_id("<tool_call>"), tokenizer.token_to_id("</tool_call>")
    spec = tools_spec([("pick", PARAMETERS, False)], many=many, tokens=tokens)
    sampling = SamplingSpec(temperature=1.5, seed=handle, end_ids=(tokenizer.token_to_id("<end>"),))
    return EngineRequest(handle, PROMPT, 400, sampling, choices=choices, grammar=spec, **more)


def letters(made: Answers, handle: int, tokenizer: Tokenizer) -> list[str]:
    text = tokenizer.decode(made.tokens[handle], skip_special_tokens=False)
    return [json.loads(arguments)["x"] for _, arguments in whole_calls(text, "pick")]


@pytest.mark.slow
def test_an_answer_that_does_not_fit_says_so(engine: Engine[Any], tokenizer: Tokenizer) -> None:
    """Each choice by itself; an answer with several calls does not fit if one of them does not."""
    requests = [asked(10 * place, tokenizer, choices=4, many=place > 2) for place in range(6)]
    made = answers(engine, requests)
    written = {handle: letters(made, handle, tokenizer) for handle in made.reasons}
    assert len(written) == 24
    assert {handle for handle, drawn in written.items() if "a" in drawn} == {*made.misfits}
    assert 0 < len(made.misfits) < 24
    assert all(problem.startswith(MISFIT) for problem in made.misfits.values())


def test_a_call_in_a_thought_is_no_call(engine: Engine[Any], tokenizer: Tokenizer) -> None:
    request = asked(3, tokenizer)
    assert request.grammar is not None
    end = tokenizer.token_to_id("</think>")
    spec = replace(request.grammar, thought_begin=tokenizer.token_to_id("<think>"), thought_end=end)
    spelled = ("<tool", '_call>\n{"name": "pick", "arguments": {"x": "a"}}\n</tool', "_call>")
    call = [token for text in spelled for token in tokenizer.encode(text).ids]
    thought = [tokenizer.token_to_id("<think>"), *call, end]
    misfits = 0
    for seed in range(8):
        sampling = replace(request.sampling, seed=seed)
        made = answers(engine, [replace(request, grammar=spec, sampling=sampling, outputs=(tuple(thought),))])
        assert made.reasons == {3: "complete"}
        misfits += bool(made.misfits)
        assert bool(made.misfits) == (letters(made, 3, tokenizer) == ["a"])
    assert misfits < 8


def test_an_answer_that_an_earlier_attempt_has_ended_is_checked(
    engine: Engine[Any], tokenizer: Tokenizer
) -> None:
    first = answers(engine, [asked(handle, tokenizer) for handle in range(8)])
    for handle, tokens in first.tokens.items():
        for cut in (len(tokens), len(tokens) - 1):
            again = answers(engine, [asked(handle, tokenizer, outputs=(tuple(tokens[:cut]),))])
            assert again.misfits == {one: first.misfits[one] for one in first.misfits if one == handle}
            assert again.reasons[handle] == first.reasons[handle]


def test_a_cut_answer_needs_no_check(engine: Engine[Any], tokenizer: Tokenizer) -> None:
    made = answers(engine, [replace(asked(1, tokenizer), max_tokens=3)])
    assert (made.reasons, made.misfits) == ({1: "length"}, {})


@pytest.mark.slow
def test_others_go_on_and_an_aborted_answer_is_forgotten(
    engine: Engine[Any], tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While checks take their time, the engine is not idle, and other rows end."""
    may_go_on = threading.Event()

    def slow(schema: str, instance: str) -> str:
        assert may_go_on.wait(30)
        return problem_of_instance(schema, instance)

    monkeypatch.setattr(engine.grammars, "_check", slow)
    for request in (
        asked(1, tokenizer),
        asked(2, tokenizer),
        replace(asked(3, tokenizer), grammar=None, max_tokens=40),
    ):
        assert engine.add(request) is None
    ended: list[int] = []
    until = time.monotonic() + 30
    while not engine.idle:
        if time.monotonic() > until:  # other tests have the engine after this one
            may_go_on.set()
        engine.take_compiled()
        if (step := engine.step()) is not None:
            ended += [handle for handle, _ in step.finished]
        if ended == [3] and engine.scheduler.idle and not engine.grammars:
            engine.abort([1])
            may_go_on.set()
    assert ended == [3, 2]


@pytest.mark.slow
def test_the_end_token_of_a_held_answer_is_told(engine: Engine[Any], tokenizer: Tokenizer) -> None:
    """It is no text, and its step is told before the end is."""
    end = tokenizer.token_to_id("<end>")
    request = asked(5, tokenizer, many=True)
    assert request.grammar is not None
    free = replace(request.grammar, text=request.grammar.text.replace('"free": false', '"free": true'))
    bias = replace(request.sampling, logit_bias=((end, 3.0), (tokenizer.token_to_id("<tool_call>"), 4.0)))
    assert engine.add(replace(request, grammar=free, sampling=bias)) is None
    held, drawn, ended = [], [], []
    while not engine.idle:
        engine.take_compiled()
        if (step := engine.step()) is not None:
            drawn += step.tokens
            held += [(handle, len(drawn)) for handle in step.held]
            ended += step.finished
    assert drawn[-1] == end
    assert (held, ended) == ([(5, len(drawn))], [(5, "stop")])


def test_a_check_that_fails_unexpectedly_is_a_misfit(
    engine: Engine[Any], tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*given: str) -> str:
        raise OSError("no process")

    monkeypatch.setattr(engine.grammars, "_check", broken)
    made = answers(engine, [asked(1, tokenizer)])
    assert made.reasons == {1: "complete"}
    assert made.misfits == {1: "they cannot be checked: OSError('no process')"}
