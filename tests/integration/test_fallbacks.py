"""A real (tiny, random) model in float32 behind the real queue: its answers are what transformers would
generate, also where the compiler makes wrong code; then the worker says why it is slower."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.models import checkpoints
from support.servers.servers import Server
from support.workers.counting_worker import REAL, worker_process, write_tokenizer

from millstream import Client
from millstream_worker.engine.runner import native

pytestmark = pytest.mark.slow
SOURCES = Path(native.__file__).parent / "src"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(checkpoints.build("llama", tmp_path_factory.mktemp("models")))


def wrong(folder: Path) -> str:
    """Scores of attention lack a factor."""
    expression = "shape_.scale * LOG2_E"
    assert expression in (SOURCES / "tile.h").read_text()
    return script(
        folder,
        f"""
        copy=$(mktemp -d {folder}/XXXXXX)
        cp {SOURCES}/* $copy
        sed -i 's/{expression.replace("*", "[*]")}/shape_.scale/' $copy/tile.h
        for argument; do shift; set -- "$@" "$(echo "$argument" | sed "s|^{SOURCES}/|$copy/|")"; done""",
    )


def shown(client: Client) -> str:
    """The reasons in the worker's heartbeat."""
    workers = client.queue_info().workers
    assert workers is not None
    return workers[0].fallbacks


def script(folder: Path, lines: str) -> str:
    """A compiler that does not optimise, which is quicker."""
    compiler = folder / "compiler"
    compiler.write_text(f'#!/bin/sh\n{lines}\nexec g++ "$@" -O0\n')
    compiler.chmod(0o755)
    return str(compiler)


@pytest.mark.parametrize(
    ("compiler", "reason"),
    [(None, ""), (wrong, "attention: plain PyTorch, slower than native: attention of 4 heads (2 KV) of")],
)
def test_greedy_is_what_transformers_generates(
    compiler: Callable[[Path], str] | None,
    reason: str,
    valkey: Server,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    changes = {}
    if compiler is not None:
        monkeypatch.setenv("CXX", compiler(tmp_path))
        changes = {"cache_dir": str(tmp_path / "cache")}
    with Client(valkey.url) as client, worker_process(valkey, str(model), **REAL, **changes):
        ids = [
            client.submit(token_ids=[3, 5, 8, n], max_tokens=20, temperature=0, ignore_eos=True).id
            for n in range(3)
        ]
        results = [client.wait(job_id, timeout_s=90) for job_id in ids]
        while not (fallbacks := shown(client)) and reason:  # the heartbeat after the start comes in renew_s
            time.sleep(0.05)
    reference = checkpoints.plain(model)
    for n, result in enumerate(results):
        assert list(result.choices[0].token_ids) == checkpoints.generate(reference, [3, 5, 8, n], 20)
        assert result.choices[0].finish_reason == "length"
    assert reason in fallbacks
