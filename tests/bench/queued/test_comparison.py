"""A tiny model through a real server, a real worker and real clients."""

from __future__ import annotations

from pathlib import Path

import pytest
from ops.bench.engines.adapters import Setup
from ops.bench.measures import Run, Timing
from ops.bench.models.size import size_of
from ops.bench.queued import comparison
from ops.bench.queued.comparison import Queued
from ops.bench.queued.stack import stack, worker_flags
from ops.bench.workloads import Workload
from support.models import tokenizers

from millstream_worker.settings import load

WORK = Workload("x", "", [[11, 12, 13, 14, 15], [21, 22], [31, 32, 33]], [6, 1, 4])


@pytest.mark.slow
def test_clients_share_the_work_and_read_every_token(tiny: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    for file in tiny.iterdir():
        (model / file.name).symlink_to(file)
    tokenizers.build("byte-level").save(str(model / "tokenizer.json"))
    (model / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    kv_token_bytes, plain = size_of(tiny).kv_token_bytes, "compile_model=off"
    setup = Setup(
        str(model), "cpu", 1, kv_token_bytes, kv_tokens=1024, longest_row=16, rows=3, settings=plain
    )
    with stack(setup, clients=2) as running:
        before = running.cpu_s()
        run, clients_s = running.run(WORK)
        after = running.cpu_s()
    assert sorted(timing.tokens for timing in run.timings) == sorted(WORK.output_lengths)
    assert all(timing.first_s and timing.first_s <= timing.last_s <= run.seconds for timing in run.timings)
    assert set(before) == {"front", "engine", "server"}
    assert after["engine"] > before["engine"]
    assert clients_s > 0


def test_the_worker_gets_the_engine_settings_as_valid_flags(tiny: Path) -> None:
    settings = "prefix_cache=off,shared_attention=on,compile_model=off"
    setup = Setup(str(tiny), "cpu", 1, 64, kv_tokens=1024, longest_row=16, rows=3, settings=settings)
    flags = worker_flags(setup, "redis://127.0.0.1", tiny)
    chosen = load(flags)
    assert (chosen.prefix_cache, chosen.shared_attention, chosen.compile_model) == (False, True, "off")
    assert (chosen.max_rows, chosen.threads) == (256, 1)


def test_a_row_compares_the_best_of_either_side() -> None:
    alone = [Run(seconds, (Timing(0.1, seconds, 100),)) for seconds in (2.0, 1.0)]
    around = [
        Queued(Run(seconds, (Timing(0.3, seconds, 100),)), {"engine": seconds, "front": 9.0})
        for seconds in (1.25, 5.0)
    ]
    line = comparison.row("tiny14m A", alone, around, least_s=0.5)
    assert line == "| tiny14m A | 100 | 80 | 80.0% | 200 | 0.30/0.30 | front 9.0, engine 1.2 of 1.2 s |"
