"""A whole engine over a tiny random model: with draft tokens, rows have the tokens that they have without."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.engine.whole_engine import Answers, answers, engine_on
from support.models import checkpoints
from support.models.spelling import spelling_checkpoint

from millstream_worker.engine.engine import Engine
from millstream_worker.engine.protocol.outputs import EngineStats
from millstream_worker.engine.protocol.request import EngineRequest, GrammarSpec, SamplingSpec

TEXT = tuple(range(3, 15))
RECORD = GrammarSpec(
    "json_schema",
    json.dumps(
        {
            "type": "object",
            "properties": {"names": {"type": "array", "items": {"type": "string", "maxLength": 8}}},
            "required": ["names"],
            "additionalProperties": False,
        }
    ),
)
SIZE = {"max_rows": 16}  # with places left for draft tokens


def requests(count: int, grammar: GrammarSpec | None = None, **changes: Any) -> list[EngineRequest]:
    """Of one kind, so that they guess from each other's outputs, too; greedy and drawn."""
    made = []
    for handle in range(count):
        options = {"temperature": handle % 3 * 0.4, "top_p": 0.9, "seed": handle // 2, "end_ids": (2,)}
        sampling = SamplingSpec(**options | changes)
        made.append(EngineRequest(handle, TEXT * 3, 30 + handle, sampling, grammar=grammar))
    return made


def outputs(engine: Engine[Any], asked: list[EngineRequest]) -> tuple[Answers, EngineStats]:
    """Without the number of steps, which differs."""
    found = answers(engine, asked)
    assert len(found.tokens) == len(asked), "some were refused"
    return replace(found, steps=0), engine.report().stats


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.build("llama", tmp_path_factory.mktemp("models"))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"kv_memory": "24KiB"},  # rows are preempted
        {"attention": "torch"},
        {"max_step_tokens": 18},  # prompts in chunks beside
    ],
    ids=["plain", "preempted", "torch", "chunks"],
)
def test_rows_have_the_tokens_that_they_have_without_drafts(folder: Path, changes: dict[str, Any]) -> None:
    asked = requests(10)
    plain, _ = outputs(engine_on("cpu", folder, speculate="off", **SIZE | changes), asked)
    drafted, stats = outputs(engine_on("cpu", folder, speculate="always", **SIZE | changes), asked)
    assert drafted == plain
    assert 0 < stats.accepted_total < stats.drafted_total


def test_log_probabilities_and_least_lengths_are_the_same(folder: Path) -> None:
    asked = requests(6, top_logprobs=2, min_tokens=20)
    plain, _ = outputs(engine_on("cpu", folder, speculate="off", **SIZE), asked)
    drafted, stats = outputs(engine_on("cpu", folder, speculate="always", **SIZE), asked)
    assert drafted == plain
    assert stats.accepted_total > 0


def test_penalised_rows_are_not_drafted(folder: Path) -> None:
    engine = engine_on("cpu", folder, speculate="always")
    _, stats = outputs(engine, requests(4, presence_penalty=0.5))
    assert stats.drafted_total == 0


@pytest.mark.parametrize("case", ["llama", "lfm2"])
def test_rows_with_a_grammar_have_the_same_tokens(case: str, tmp_path: Path) -> None:
    """Tokens that it forces come behind some that were drafts."""
    folder = spelling_checkpoint(tmp_path, case=case)
    changes = {"cuda_graphs": "off"}
    asked = requests(9, grammar=RECORD, end_ids=())
    plain, _ = outputs(engine_on("cpu", folder, speculate="off", **SIZE | changes), asked)
    drafted, stats = outputs(engine_on("cpu", folder, speculate="always", **SIZE | changes), asked)
    assert drafted == plain
    assert 0 < stats.accepted_total < stats.drafted_total


@pytest.mark.slow
def test_two_hundred_rows_have_the_same_tokens(folder: Path) -> None:
    """More than there are places for, so that rows of every length are drafted beside each other."""
    asked = requests(200)
    for mode, half in (("auto", asked[::2]), ("always", asked[1::2])):
        plain, _ = outputs(engine_on("cpu", folder, speculate="off", max_rows=16), half)
        drafted, stats = outputs(engine_on("cpu", folder, speculate=mode, max_rows=64), half)
        assert drafted == plain
        assert stats.accepted_total > 0
