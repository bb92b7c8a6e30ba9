"""A whole engine over a tiny random model: rows with limits of tokens have what a plain reference has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.engine.whole_engine import answers, engine_on
from support.models.spelling import spelling_checkpoint
from tokenizers import Tokenizer

from millstream_worker.engine.brain.scheduler import Scheduler
from millstream_worker.engine.engine import Engine
from millstream_worker.engine.protocol.request import (
    EngineRequest,
    GrammarSpec,
    LimitSpec,
    SamplingSpec,
    token_bits,
)

PROMPT = tuple(range(30, 49))
LETTERS = GrammarSpec("regex", "[a-z]{1,12}")
WORD = GrammarSpec("choice", '["the fox"]')
NEVER = -1e9


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return spelling_checkpoint(tmp_path_factory.mktemp("models"), words=True)


@pytest.fixture(scope="module")
def think(tokenizer: Tokenizer) -> tuple[int, int]:
    return tokenizer.token_to_id("<think>"), tokenizer.token_to_id("</think>")


def asked(
    handle: int, limits: LimitSpec | None, grammar: GrammarSpec | None = None, **changes: Any
) -> EngineRequest:
    sampling = SamplingSpec(**{"temperature": 1.5, "seed": handle} | changes.pop("sampling", {}))
    fields = {"grammar": grammar, "limits": limits} | changes
    return EngineRequest(handle, PROMPT, fields.pop("max_tokens", 24), sampling, **fields)


def only(*tokens: int) -> bytes:
    return token_bits(tokens, max(tokens) + 1)


def greedy_output(engine: Engine[Any], barred: Any, length: int) -> list[int]:
    """Token by token, each the first of a request of its own, where a bias keeps the barred ones out."""
    output: list[int] = []
    while len(output) < length:
        bias = tuple((token, NEVER) for token in barred(output))
        sampling = SamplingSpec(temperature=0.0, logit_bias=bias)
        request = EngineRequest(1, (*PROMPT, *output), 1, sampling)
        output += answers(engine, [request]).tokens[1]
    return output


def mixed(engine: Engine[Any], think: tuple[int, int]) -> list[EngineRequest]:
    """Rows of each kind, greedy and drawn, of which the limits change the output."""
    begin, end = think
    free = answers(engine, [asked(handle, None) for handle in range(4)]).tokens
    greedy = answers(engine, [asked(0, None, sampling={"temperature": 0.0})]).tokens[0]
    words = (*(tuple(output[3:6]) for output in free.values()), (greedy[0],), tuple(greedy[1:3]))
    kinds = [
        LimitSpec(bad_words=words),
        LimitSpec(allowed=only(*range(70, 75)), bad_words=((70, 71), (71, 71))),
        LimitSpec(thought_budget=5, thought_end=end),
        None,
    ]
    made = [
        asked(handle, kinds[handle % 4], sampling={"temperature": handle % 3 * 0.7, "min_tokens": 3})
        for handle in range(12)
    ]
    made.append(asked(12, LimitSpec(bad_words=((72,), (73, 74), (75, 72))), LETTERS))
    thought = replace(LETTERS, thought_begin=begin, thought_end=end)
    made.append(asked(13, LimitSpec(thought_budget=2, thought_begin=begin, thought_end=end), thought))
    return made


def nearly(tokens: list[int]) -> tuple[int, ...]:
    return tuple(69 if place % 7 == 5 else token for place, token in enumerate(tokens))


def test_greedy_rows_are_those_of_a_plain_reference(engine: Engine[Any], think: tuple[int, int]) -> None:
    everything = range(engine.scheduler.config.vocab_size)
    free = greedy_output(engine, lambda output: (), 8)
    word, pair = free[0], tuple(free[2:4])

    def bad(output: list[int]) -> set[int]:
        return {word} | ({pair[1]} if output[-1:] == [pair[0]] else set())

    def other(output: list[int]) -> set[int]:
        return set(everything) - {80, 81, 82}

    def thinking(output: list[int]) -> set[int]:
        return set(everything) - {think[1]} if len(output) == 4 else set()

    for limits, barred in (
        (LimitSpec(bad_words=((word,), pair)), bad),
        (LimitSpec(allowed=only(80, 81, 82)), other),
        (LimitSpec(thought_budget=4, thought_end=think[1]), thinking),
    ):
        request = asked(1, limits, max_tokens=8, sampling={"temperature": 0.0})
        assert answers(engine, [request]).tokens[1] == greedy_output(engine, barred, 8), limits


@pytest.mark.slow
def test_drafts_steps_ahead_and_neighbours_change_nothing(
    folder: Path, engine: Engine[Any], think: tuple[int, int]
) -> None:
    """Nor do preemption, the torch sampler, or log-probabilities."""
    requests = mixed(engine, think)
    alone: dict[int, list[int]] = {}
    for request in requests:
        alone |= answers(engine, [request]).tokens
    requests = [replace(one, prediction=nearly(alone[one.handle])) for one in requests]
    size = {"max_rows": 40, "cuda_graphs": "off"}
    drafting = engine_on("cpu", folder, speculate="always", **size)
    tight = engine_on("cpu", folder, kv_memory="48KiB", **size)
    own = engine_on("cpu", folder, **size)
    scheduler = Scheduler(replace(own.scheduler.config, pipeline_depth=1))
    ahead = Engine(scheduler, own.runner, depth=1, grammars=own.grammars)
    for other in (drafting, tight, ahead):
        assert answers(other, requests).tokens == alone
    assert 0 < drafting.report().stats.accepted_total < drafting.report().stats.drafted_total
    assert tight.report().stats.preemptions_total > 0
    told = [replace(one, sampling=replace(one.sampling, top_logprobs=1)) for one in requests]
    assert answers(engine, told).tokens == alone


def test_a_resumed_row_keeps_its_limits(engine: Engine[Any], think: tuple[int, int]) -> None:
    requests = mixed(engine, think)
    whole = answers(engine, requests).tokens
    for cut in (1, 4):
        resumed = [replace(one, outputs=(tuple(whole[one.handle][:cut]),)) for one in requests]
        rest = answers(engine, resumed).tokens
        for handle, tokens in whole.items():
            assert rest.get(handle, []) == tokens[cut:], (cut, handle)


def test_an_unspent_budget_changes_no_token(engine: Engine[Any], think: tuple[int, int]) -> None:
    begin, end = think
    plain = answers(engine, [asked(1, None)])
    for limits in (
        LimitSpec(thought_budget=24, thought_end=end),
        LimitSpec(thought_budget=0, thought_begin=begin, thought_end=end),  # it does not begin one
    ):
        assert answers(engine, [asked(1, limits)]).tokens == plain.tokens


@pytest.mark.parametrize("begun", [True, False])
def test_a_thought_ends_when_its_budget_is_spent(
    engine: Engine[Any], think: tuple[int, int], begun: bool
) -> None:
    begin, end = think
    limits = LimitSpec(thought_budget=3, thought_begin=None if begun else begin, thought_end=end)
    first = {"logit_bias": () if begun else ((begin, 1e4),)}
    tokens = answers(engine, [asked(1, limits, sampling=first)]).tokens[1]
    assert tokens.index(end) == (3 if begun else 4)
    closed = replace(limits, thought_budget=0)
    assert answers(engine, [asked(1, closed, sampling=first)]).tokens[1].index(end) == (0 if begun else 1)


def test_a_grammar_goes_together_with_limits(
    engine: Engine[Any], tokenizer: Tokenizer, think: tuple[int, int]
) -> None:
    """A budget, a bad word and the form of the answer hold at once."""
    _, end = think
    letters = {letter: tokenizer.token_to_id(letter) for letter in "abcxyz"}
    thought = replace(LETTERS, text="[abc]{4,9}", thought_end=end)
    limits = LimitSpec(
        bad_words=((letters["a"],), (letters["b"], letters["b"])), thought_budget=4, thought_end=end
    )
    outputs = answers(engine, [asked(handle, limits, thought) for handle in range(8)])
    for handle, tokens in outputs.tokens.items():
        assert 4 <= tokens.index(end) <= 7, "a character is completed first"
        answer = tokenizer.decode(tokens[tokens.index(end) + 1 :]).strip("\n")
        assert set(answer) <= {"b", "c"}
        assert "bb" not in answer
        assert outputs.reasons[handle] in ("complete", "length")


def test_a_row_without_any_token_left_ends_alone(engine: Engine[Any], tokenizer: Tokenizer) -> None:
    """Its neighbours go on, and it has the tokens that it could have."""
    zed = tokenizer.token_to_id("z")
    outputs = answers(
        engine,
        [
            asked(1, LimitSpec(allowed=only(70), bad_words=((70, 70),))),
            asked(2, LimitSpec(allowed=only(zed)), LETTERS),
            asked(3, LimitSpec(allowed=only(70)), GrammarSpec("choice", '["!"]')),
            asked(4, LimitSpec(allowed=only(2)), sampling={"end_ids": (2,), "min_tokens": 3}),
            asked(5, None),
            asked(6, LimitSpec(allowed=only(2)), sampling={"end_ids": (2,)}),
            asked(7, LimitSpec(bad_words=((tokenizer.token_to_id("the"),),)), WORD),
        ],
    )
    assert outputs.reasons == {
        1: "limits_stuck",
        2: "complete",
        3: "grammar_stuck",
        4: "limits_stuck",
        5: "length",
        6: "stop",
        7: "grammar_stuck",
    }
    assert {handle: len(tokens) for handle, tokens in outputs.tokens.items()} == {1: 1, 2: 12, 5: 24, 6: 1}
