"""A soak whose load has died ends, and says why."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
from ops.bench.soak import run
from ops.bench.soak.run import Crew
from ops.bench.soak.series import Series


async def test_it_does_not_go_on_without_its_load() -> None:
    load = await asyncio.create_subprocess_exec(sys.executable, "-c", "raise SystemExit(3)")
    await load.wait()
    options = argparse.Namespace(minutes=1.0, kill_every_s=0.0, every_s=60.0)
    inspector: Any = None
    with pytest.raises(RuntimeError, match="the load ended with 3"):
        await run._sample(options, Crew([], load), inspector, Series())


def test_the_logs_are_shown_before_their_folder_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def broken(options: argparse.Namespace, url: str, folder: Path) -> int:
        (folder / "load.log").write_text("no memory left")
        raise RuntimeError("see its log")

    monkeypatch.setattr("signal.signal", lambda number, handler: None)
    monkeypatch.setattr("sys.argv", ["run.py", "--redis-url", "redis://nowhere"])
    with pytest.raises(RuntimeError, match="see its log"):
        run.main(broken)
    assert "load.log:\nno memory left" in capsys.readouterr().out
