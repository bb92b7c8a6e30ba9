"""A tiny model through a real server, a real worker and real clients."""

from __future__ import annotations

from pathlib import Path

import pytest
from ops.bench import queued, queued_stack
from ops.bench.adapters import Setup
from ops.bench.measures import Run, Timing
from ops.bench.model_size import size_of
from ops.bench.queued import Queued
from ops.bench.queued_stack import stack, with_tokenizer
from ops.bench.workloads import Workload
from support import tokenizers

WORK = Workload("x", "", [[11, 12, 13, 14, 15], [21, 22], [31, 32, 33]], [6, 1, 4])


def test_clients_share_the_work_and_read_every_token(tiny: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    for file in tiny.iterdir():
        (model / file.name).symlink_to(file)
    tokenizers.build("byte-level").save(str(model / "tokenizer.json"))
    (model / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    setup = Setup(str(model), "cpu", 1, size_of(tiny).kv_token_bytes, kv_tokens=64, longest_row=16, rows=3)
    with stack(setup, clients=2) as running:
        before = running.cpu_s()
        run, clients_s = running.run(WORK)
        after = running.cpu_s()
    assert sorted(timing.tokens for timing in run.timings) == sorted(WORK.output_lengths)
    assert all(timing.first_s and timing.first_s <= timing.last_s <= run.seconds for timing in run.timings)
    assert set(before) == {"front", "engine", "server"}
    assert after["engine"] > before["engine"]
    assert clients_s > 0


def test_a_model_without_a_tokenizer_gets_one(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "tokenizer"
    own.mkdir()
    (own / "tokenizer.json").write_text("{}")
    monkeypatch.setattr(queued_stack, "bench_tokenizer", lambda: own)
    folder = with_tokenizer(tiny, tmp_path / "model")
    assert (folder / "tokenizer.json").read_text() == "{}"
    assert (folder / "config.json").read_text() == (tiny / "config.json").read_text()
    assert with_tokenizer(folder, tmp_path / "unused") == folder


def test_a_row_compares_the_best_of_either_side() -> None:
    alone = [Run(seconds, (Timing(0.1, seconds, 100),)) for seconds in (2.0, 1.0)]
    around = [
        Queued(Run(seconds, (Timing(0.3, seconds, 100),)), {"engine": seconds, "front": 9.0})
        for seconds in (1.25, 5.0)
    ]
    line = queued.row("tiny14m", "a", alone, around)
    assert line == "| tiny14m A | 100 | 80 | 80.0% | 0.30/0.30 | front 9.0, engine 1.2 of 1.2 s |"
