"""Rows with and without grammars, in the benchmark's turns."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ops.bench.grammars import answering, part
from ops.bench.grammars.answering import Assignment
from ops.bench.grammars.schemas import record
from ops.bench.plots import Row

from millstream_worker.engine import assembly


def measured(spelling: Path, **changes: Any) -> list[Row]:
    def built(config: Any, report: Any) -> Any:
        changed = replace(config, compile_model="off", dtype="float32", kv_memory="8MiB")
        return assembly.build(changed, report)

    given = {"rows": 3, "fields": 4, "tokens": 25, "turns": 1, "threads": 1, "schemas": 0, "logprobs": False}
    options = argparse.Namespace(**(given | changes))
    return part.measure(str(spelling), options, spelling / "unused", built)


def test_forced_tokens_come_in_fewer_steps(spelling: Path) -> None:
    [row] = measured(spelling)
    assert float(row["tokens a step"]) > 1
    assert float(row["a token"]) == pytest.approx(float(row["a step"]) / float(row["tokens a step"]))


def test_of_rows_with_logprobs_they_come_one_by_one(spelling: Path) -> None:
    [row] = measured(spelling, logprobs=True)
    assert row["tokens a step"] == 1


@pytest.mark.slow
def test_each_of_many_has_its_own(spelling: Path) -> None:
    without, under = measured(spelling, schemas=5, tokens=4)
    assert (without["last"], without["rows"], under["rows"]) == (0.0, "without", "schemas")
    assert float(under["last"]) > 0
    assert len({record(4, seed).text for seed in range(50)}) == 50


@pytest.mark.slow
def test_answers_that_are_counted_come_to_their_end(spelling: Path) -> None:
    fields = {"n": {"enum": [1, 2]}}
    schema = {"type": "object", "properties": fields, "required": ["n"], "additionalProperties": False}
    prompts = [[30 + place, 31, 32] for place in range(3)]
    given = Assignment("millstream", str(spelling), prompts, json.dumps(schema), 250, 1, 1, "", "off")
    ask = answering.millstream(given)
    assert len(ask(bound=True, salt="a").finished) == 3
    assert ask(bound=False, salt="b").tokens <= 750
    short = answering.millstream(replace(given, tokens=2))(bound=True, salt="short")
    assert (short.finished, short.tokens) == ([], 6)
