"""The command: what it loads, how signals end it, and what it says instead of serving."""

from __future__ import annotations

import asyncio
import importlib.util
import signal
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import psutil
import pytest
from support.workers.work import Work, outcome

from millstream import AsyncClient
from millstream_worker.__main__ import main


async def test_a_process_without_torch_exits_cleanly_on_many_signals(client: AsyncClient, work: Work) -> None:
    """Also on those that come when it has given everything back and is on its way out."""
    with work.process() as worker:
        assert (await outcome(client, "w1", 2)).choices[0].finish_reason == "length"
        if sys.platform == "linux":
            loaded = {Path(one.path).name for one in psutil.Process(worker.pid).memory_maps()}
            assert any("tokenizers" in name for name in loaded)
            assert not any("libtorch" in name for name in loaded)
        while worker.poll() is None:
            worker.send_signal(signal.SIGTERM)
            await asyncio.sleep(0.001)
        assert worker.returncode == 0


@pytest.mark.parametrize("missing", ["torch", "pydantic_settings"])
def test_a_missing_extra_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], missing: str
) -> None:
    find = importlib.util.find_spec

    def without(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name == missing else find(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    assert main(["--model", "x"]) == 2
    needs = "millstream-worker: the worker needs the extra [worker]: in a checkout, pip install '.[worker]'\n"
    assert capsys.readouterr().err == needs


def test_every_bad_setting_is_told_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MILLSTREAM_BLOCK_SIZE", "zero")
    assert main(["--model", "", "--max-rows", "-1", "--lease-s", "soon"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(":")[1].strip() for line in lines] == ["model", "block_size", "max_rows", "lease_s"]
    assert all("MILLSTREAM_" in line for line in lines)
