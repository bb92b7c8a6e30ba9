"""A whole engine over a tiny random model, whose answers have the required form whatever happens to them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.engine.whole_engine import answers, engine_on
from support.models import tokenizers
from support.models.spelling import spelling_checkpoint
from tokenizers import Tokenizer

from millstream_worker.engine.brain.scheduler import Scheduler
from millstream_worker.engine.engine import Engine
from millstream_worker.engine.protocol.request import EngineRequest, GrammarSpec, SamplingSpec

PROMPT = tuple(range(30, 49))
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "colour": {"enum": ["red", "green"]},
    },
    "required": ["name", "age", "colour"],
    "additionalProperties": False,
}
RECORD = GrammarSpec("json_schema", json.dumps(SCHEMA))
PLATE = GrammarSpec("regex", "[A-C]{2}-[0-9]{3}")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return tokenizers.build("byte-level")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return spelling_checkpoint(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def end_id(tokenizer: Tokenizer) -> int:
    return int(tokenizer.token_to_id("<end>"))


@pytest.fixture(scope="module")
def engine(folder: Path) -> Engine[Any]:
    return engine_on("cpu", folder, cuda_graphs="off")


def asked(
    handle: int, grammar: GrammarSpec | None, end_id: int, *, tokens: int = 90, **changes: Any
) -> EngineRequest:
    options: dict[str, Any] = {"temperature": 1.5, "seed": handle, "end_ids": (end_id,)}
    options |= changes.pop("sampling", {})
    return EngineRequest(handle, PROMPT, tokens, SamplingSpec(**options), grammar=grammar, **changes)


def test_every_finished_answer_fits(engine: Engine[Any], tokenizer: Tokenizer, end_id: int) -> None:
    words = GrammarSpec("choice", json.dumps(["yes", "no", 'may"be']))
    outputs = answers(
        engine,
        [
            *(asked(handle, RECORD, end_id) for handle in range(6)),
            *(asked(handle, PLATE, end_id) for handle in range(6, 10)),
            *(asked(handle, words, end_id) for handle in range(10, 14)),
            asked(14, None, end_id),
        ],
    )
    texts = {handle: tokenizer.decode(tokens) for handle, tokens in outputs.tokens.items()}
    assert {outputs.reasons[handle] for handle in range(14)} <= {"complete", "stop"}
    for handle in range(6):
        record = json.loads(texts[handle])
        assert list(record) == ["name", "age", "colour"]
        assert len(record["name"]) <= 6
        assert 0 <= record["age"] <= 99
        assert record["colour"] in ("red", "green")
    assert all(re.fullmatch(PLATE.text, texts[handle]) for handle in range(6, 10))
    assert {texts[handle] for handle in range(10, 14)} <= {"yes", "no", 'may"be'}
    assert len(outputs.tokens[14]) == 90 or outputs.reasons[14] == "stop"


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_forced_tokens_are_the_same_one_by_one_and_in_chunks(
    engine: Engine[Any], end_id: int, temperature: float
) -> None:
    ways = ({"temperature": temperature, "top_logprobs": top} for top in (None, 0))
    chunks, singly = (answers(engine, [asked(1, RECORD, end_id, sampling=way)]) for way in ways)
    assert chunks.tokens == singly.tokens
    assert chunks.steps < singly.steps == len(singly.tokens[1])


def test_a_stop_token_ends_the_answer_among_forced_ones(
    engine: Engine[Any], tokenizer: Tokenizer, end_id: int
) -> None:
    [stop] = tokenizer.encode("%").ids
    grammar = GrammarSpec("regex", "[AB]#%&[CD]")
    for top in (None, 0):
        sampling = {"end_ids": (end_id, stop), "top_logprobs": top}
        outputs = answers(engine, [asked(1, grammar, end_id, sampling=sampling)])
        assert tokenizer.decode(outputs.tokens[1])[1:] == "#%"
        assert outputs.reasons == {1: "stop"}


@pytest.mark.slow
def test_one_step_ahead_changes_nothing(folder: Path, engine: Engine[Any], end_id: int) -> None:
    requests = [asked(handle, (RECORD, PLATE, None)[handle % 3], end_id) for handle in range(9)]
    own = engine_on("cpu", folder)  # with keys and values that no other scheduler knows
    scheduler = Scheduler(replace(own.scheduler.config, pipeline_depth=1))
    ahead = Engine(scheduler, own.runner, depth=1, grammars=own.grammars)
    expected = answers(engine, requests)
    outputs = answers(ahead, requests)
    assert (outputs.tokens, outputs.reasons) == (expected.tokens, expected.reasons)


@pytest.mark.slow
def test_neighbours_and_preemption_change_nothing(folder: Path, engine: Engine[Any], end_id: int) -> None:
    requests = [asked(handle, (RECORD, PLATE, None)[handle % 3], end_id) for handle in range(9)]
    alone: dict[int, list[int]] = {}
    for request in requests:
        alone |= answers(engine, [request]).tokens
    tight = engine_on("cpu", folder, kv_memory="48KiB")
    together = answers(tight, requests)
    assert together.tokens == alone
    assert tight.report().stats.preemptions_total > 0


def test_the_length_ends_an_answer_in_its_middle(engine: Engine[Any], end_id: int) -> None:
    outputs = answers(engine, [asked(handle, RECORD, end_id, tokens=handle) for handle in (1, 2, 7)])
    assert outputs.reasons == dict.fromkeys((1, 2, 7), "length")
    assert {handle: len(tokens) for handle, tokens in outputs.tokens.items()} == {1: 1, 2: 2, 7: 7}


def test_a_resumed_answer_goes_on_where_it_was(engine: Engine[Any], end_id: int) -> None:
    whole = answers(engine, [asked(1, RECORD, end_id)]).tokens[1]
    for cut in (1, 5, len(whole) - 1):
        resumed = answers(engine, [asked(1, RECORD, end_id, outputs=(tuple(whole[:cut]),))])
        assert resumed.tokens[1] == whole[cut:], cut
    over = answers(engine, [asked(1, RECORD, end_id, outputs=(tuple(whole),))])
    assert (over.tokens, over.reasons) == ({}, {1: "complete"})


def test_choices_share_a_compiled_grammar_and_follow_it_apart(
    engine: Engine[Any], tokenizer: Tokenizer, end_id: int
) -> None:
    outputs = answers(engine, [asked(1, PLATE, end_id, choices=4, done=(2,))])
    texts = [tokenizer.decode(outputs.tokens[handle]) for handle in (1, 2, 4)]
    assert outputs.tokens.keys() == {1, 2, 4}
    assert all(re.fullmatch(PLATE.text, text) for text in texts)
    assert len(set(texts)) > 1


@pytest.mark.parametrize(
    ("grammar", "problem"),
    [
        (
            GrammarSpec("json_schema", '{"not": {"format": "uri"}}'),
            'json_schema: the keyword "not" cannot be kept',
        ),
        (GrammarSpec("json_schema", '{"not": {}}'), r"json_schema: no value fits: .* \(at /\); correct it"),
        (
            GrammarSpec("json_schema", '{"$ref": "https://example.org/a"}'),
            "out of the schema, to https://example",
        ),
        (GrammarSpec("regex", "(a"), "regex: .*regex parse error"),
        (GrammarSpec("grammar", "nonsense"), "Expected ::="),
        (GrammarSpec("json_schema", '{"allOf":' * 60 + "{}" + "}" * 60), "json_schema: "),
    ],
)
def test_a_grammar_that_cannot_be_kept_is_refused(
    engine: Engine[Any], end_id: int, grammar: GrammarSpec, problem: str
) -> None:
    outputs = answers(engine, [asked(1, grammar, end_id), asked(2, PLATE, end_id)])
    assert re.match(f"response_format: .*{problem}", outputs.reasons[1])
    assert outputs.reasons[2] == "complete"


def test_ten_thousand_texts_are_a_choice(engine: Engine[Any], tokenizer: Tokenizer, end_id: int) -> None:
    """Each as a terminal of its own ended by `grammar_limit` from some 1,000 on."""
    texts = [f"text number {number}" for number in range(10_000)]
    outputs = answers(engine, [asked(1, GrammarSpec("choice", json.dumps(texts)), end_id)])
    assert outputs.reasons[1] in ("complete", "stop")
    assert tokenizer.decode(outputs.tokens[1]) in texts


def test_the_schema_true_takes_any_json(engine: Engine[Any], tokenizer: Tokenizer, end_id: int) -> None:
    outputs = answers(engine, [asked(1, GrammarSpec("json_schema", " true "), end_id, tokens=400)])
    if outputs.reasons[1] in ("complete", "stop"):
        json.loads(tokenizer.decode(outputs.tokens[1]))
    assert outputs.reasons[1] in ("complete", "stop", "length")


def test_a_choice_may_go_on_where_another_ends(
    engine: Engine[Any], tokenizer: Tokenizer, end_id: int
) -> None:
    texts = ["a", 'a"b', "a/b\n", "é"]
    asks = [asked(handle, GrammarSpec("choice", json.dumps(texts)), end_id) for handle in range(40)]
    outputs = answers(engine, asks)
    assert {tokenizer.decode(tokens) for tokens in outputs.tokens.values()} == set(texts)


@pytest.mark.slow
def test_a_long_chain_of_references_ends_no_engine(engine: Engine[Any], end_id: int) -> None:
    """Without a large stack the process died by SIGSEGV."""
    chain = {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(7000)}
    chained = {"$ref": "#/$defs/d0", "$defs": chain | {"d7000": {"enum": [1]}}}
    outputs = answers(engine, [asked(1, GrammarSpec("json_schema", json.dumps(chained)), end_id)])
    assert outputs.reasons[1] in ("complete", "stop")


def test_an_aborted_request_comes_no_more(engine: Engine[Any], end_id: int) -> None:
    assert engine.add(asked(1, RECORD, end_id, choices=2)) is None
    engine.abort([1])
    assert answers(engine, []).tokens.keys() == {2}
