"""What an engine process leaves behind however it ends: no child process, and no temporary file."""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
from support.models import checkpoints
from support.workers.counting_worker import until

from millstream_worker.engine.protocol.config import EngineConfig
from millstream_worker.engine.protocol.frames import LoadProgress, Ready
from millstream_worker.engine_link.link import EngineLink

ENGINE = [sys.executable, "-m", "millstream_worker.engine"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler"),
]


@pytest.fixture
async def link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[EngineLink]:
    """An engine that builds the library of its kernels, if it is not there, and compiles its model."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    model = checkpoints.build("llama", tmp_path)
    config = EngineConfig(
        str(model), device="cpu", threads=1, kv_memory="1MiB", compile_model="on", cache_dir=str(tmp_path)
    )
    link = await EngineLink.start(ENGINE, config)
    yield link
    link.abandon()
    await link.reap()


def others(tmp_path: Path) -> list[str]:
    """Living processes whose temporary files are to lie here: the engine, and all that it has started."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("TMPDIR", "").startswith(str(tmp_path)) and process.status() != "zombie":
                found.append(" ".join(process.cmdline()))
    return found


def files(tmp_path: Path) -> list[Path]:
    return [*(tmp_path / "temporary").iterdir(), *(tmp_path / "native").glob("compiling-*")]


async def assert_nothing_left(tmp_path: Path) -> None:
    """Also not of processes that were killed a moment ago."""

    async def gone() -> bool:
        return not others(tmp_path) and not files(tmp_path)

    with contextlib.suppress(TimeoutError):
        await until(gone, 5.0)
    assert (others(tmp_path), files(tmp_path)) == ([], [])


@pytest.mark.usefixtures("own_cache")
async def test_an_engine_that_has_compiled_and_is_stopped(link: EngineLink, tmp_path: Path) -> None:
    said = []
    async for frame in link.frames():
        if isinstance(frame, LoadProgress):
            said.append(frame.message)
        if isinstance(frame, Ready):
            break
    assert [line for line in said if line.startswith("model compiled")], said
    assert (await link.stop(10.0)).code == 0
    await assert_nothing_left(tmp_path)


@pytest.mark.parametrize("how", ["its front is gone", "it is killed"])
async def test_an_engine_that_ends_while_a_compiler_runs(link: EngineLink, tmp_path: Path, how: str) -> None:
    async def compiles() -> bool:
        of_library = any((tmp_path / "native").glob("compiling-*"))
        return of_library and any("cc1plus" in line for line in others(tmp_path))

    await until(compiles, 120.0)
    if how == "it is killed":
        link.kill()
    else:
        link._writer.transport.abort()
    await link._process.wait()
    await assert_nothing_left(tmp_path)
