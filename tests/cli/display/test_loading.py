"""How far the worker of a command has come, out of its log."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from millstream.cli.display.load_progress import LoadingProgress, show_loading
from millstream.cli.embedded.worker_log import WorkerLog


def record(event: str, **fields: object) -> str:
    return json.dumps({"timestamp": "2026-11-22T21:00:00Z", "level": "info", "event": event, **fields}) + "\n"


def test_steps_are_read_as_the_log_grows(tmp_path: Path) -> None:
    log = WorkerLog(tmp_path / "worker.log")
    assert log.steps() == []
    with log.path.open("a") as file:
        half = record("engine loading", step="compiling 30 layers", seconds=2.5)
        file.write(record("worker starts", name="w") + "a library's line\n[1]\n" + half[:20])
        file.flush()
        assert log.steps() == ["starting the worker"]
        file.write(half[20:] + record("something else") + record("engine ready"))
        file.flush()
        assert log.steps() == ["compiling 30 layers", "reading the tokenizer"]
    assert log.steps() == []
    end = log.tail()
    assert "2026-11-22T21:00:00Z info engine loading step=compiling 30 layers seconds=2.5\n" in end
    assert "\na library's line\n" in end


def test_the_step_and_the_whole_have_their_times() -> None:
    loading = LoadingProgress(100.0)
    assert loading.text(112.0) == "loading the model, 12 s: starting the worker"
    assert loading.try_enter("compiling", 112.0)
    assert not loading.try_enter("compiling", 113.0)
    assert loading.text(112.0) == "loading the model, 12 s: compiling"
    assert loading.text(115.0) == "loading the model, 15 s: compiling (3 s)"


def test_a_step_that_gets_on_keeps_its_begin() -> None:
    loading = LoadingProgress(100.0)
    assert loading.try_enter("reading the weights", 101.0)
    assert not loading.try_enter("reading the weights: 40%", 104.0)
    assert loading.text(105.0) == "loading the model, 5 s: reading the weights: 40% (4 s)"


async def test_without_a_terminal_each_step_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    """And a long one is told again."""
    news = iter([[], ["weights"], [], [], []])
    with pytest.raises(RuntimeError):  # an iterator at its end, inside a coroutine
        await show_loading(lambda: next(news), look_s=0.0, line_every_s=0.0)
    said = capsys.readouterr().err.splitlines()
    assert [line.rpartition(": ")[2] for line in said] == ["starting the worker", *["weights"] * 5]
