"""A worker whose compiler is missing, fails or makes wrong code serves, with the same tokens, and says why it
is slower."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from support.models import checkpoints
from support.servers.servers import Server
from support.workers.counting_worker import worker_process, write_tokenizer

from millstream import Client
from millstream_worker.engine.runner import native

pytestmark = pytest.mark.slow
SOURCES = Path(native.__file__).parent / "src"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(checkpoints.build("llama", tmp_path_factory.mktemp("models")))


def missing(folder: Path) -> str:
    return "no-such-compiler"


def wrong(folder: Path) -> str:
    """Scores of attention lack a factor."""
    expression = "shape_.scale * LOG2_E"
    assert expression in (SOURCES / "tile.h").read_text()
    return script(
        folder,
        f"""
        cp {SOURCES}/* {folder}
        sed -i 's/{expression.replace("*", "[*]")}/shape_.scale/' {folder}/tile.h
        for argument; do shift; set -- "$@" "$(echo "$argument" | sed 's|^{SOURCES}/|{folder}/|')"; done""",
    )


def shown(client: Client) -> str:
    """The reasons in the worker's heartbeat."""
    workers = client.queue_info().workers
    assert workers is not None
    return workers[0].fallbacks


def script(folder: Path, lines: str) -> str:
    compiler = folder / "compiler"
    compiler.write_text(f'#!/bin/sh\n{lines}\nexec g++ "$@"\n')
    compiler.chmod(0o755)
    return str(compiler)


@pytest.mark.parametrize(
    ("compiler", "reason"),
    [
        (missing, "native code, which is faster, cannot be had: there is no C++ compiler (no-such-compiler)"),
        (wrong, "attention: plain PyTorch, slower than native: attention of 4 heads (2 KV) of"),
    ],
)
def test_a_worker_serves_without_native_code(
    compiler: object,
    reason: str,
    valkey: Server,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert callable(compiler)
    monkeypatch.setenv("CXX", compiler(tmp_path))
    settings = {"device": "cpu", "threads": 1, "kv_memory": "4MiB", "cache_dir": str(tmp_path / "cache")}
    with Client(valkey.url) as client, worker_process(valkey, str(model), engine_command="", **settings):
        job = client.submit(token_ids=[3, 5, 8], max_tokens=20, temperature=0, ignore_eos=True)
        result = client.wait(job.id, timeout_s=90)
        while not (fallbacks := shown(client)):  # the heartbeat after the engine's start comes in renew_s
            time.sleep(0.05)
    assert list(result.choices[0].token_ids) == checkpoints.generate(checkpoints.plain(model), [3, 5, 8], 20)
    assert reason in fallbacks
