"""What stands on the screen while a batch runs."""

from __future__ import annotations

import asyncio
import io
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from millstream.batch.running.tally import Tally
from millstream.cli.display import batch_progress as module
from millstream.cli.display.batch_progress import SPARE, Shown, show_progress
from millstream.cli.embedded.background import beside


def shown(
    *, total: int = 1000, skipped: int = 0, completed: int = 0, failed: int = 0, seconds: float = 0.0
) -> Shown:
    tally = Tally()
    tally.skipped, tally.completed, tally.failed = skipped, completed, failed
    tally.prompt_tokens, tally.output_tokens = 200 * completed, 20 * completed
    source = SimpleNamespace(total=total)
    run: Any = SimpleNamespace(tally=tally, elapsed_s=seconds, under_way=2000, source=source)
    return Shown(run, price_per_hour=36.0)


@pytest.mark.parametrize(
    ("skipped", "completed", "failed", "seconds", "eta"),
    [
        (0, 0, 0, 0.0, "–"),
        (900, 0, 0, 0.0, "–"),
        (0, 90, 10, 10.0, "0:01:30"),
        (800, 100, 0, 10.0, "0:00:10"),  # lines that were answered before took no time, and say nothing
        (0, 1000, 0, 10.0, "0:00:00"),
        (0, 1, 0, 100.0, "27:45:00"),
    ],
)
def test_the_time_left_is_told_from_the_lines_of_this_run(
    skipped: int, completed: int, failed: int, seconds: float, eta: str
) -> None:
    assert shown(skipped=skipped, completed=completed, failed=failed, seconds=seconds).eta() == eta


def test_jobs_before_the_first_of_the_run_are_shown_until_it_has_ended() -> None:
    waits, runs = shown(), shown(completed=1)
    waits.behind = runs.behind = 1_900
    assert "waiting behind 1,900 jobs" in waits.counts()
    assert "waiting behind 1,900 jobs" not in runs.counts()


async def test_without_a_terminal_a_line_says_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    said: asyncio.Queue[str] = asyncio.Queue()
    monkeypatch.setattr(module, "say", said.put_nowait)
    monkeypatch.setattr(module, "LINE_EVERY_S", 0.0)
    line = await beside(show_progress(shown(completed=90, failed=10, seconds=10.0)), said.get())
    assert line.startswith("100 of 1,000 lines, 10 failed, 2,000 under way, 0:00:10, ETA 0:01:30, 10.0 rows")


@pytest.mark.parametrize("width", [44, 80, 120])
def test_no_figure_is_cut_however_narrow_the_terminal_is(width: int) -> None:
    file = io.StringIO()
    console = Console(width=width, file=file, force_terminal=True, color_system=None)
    console.print(shown(total=20_000, completed=6_790, failed=12, seconds=1000.0))
    lines = file.getvalue().splitlines()
    assert max(map(len, lines)) <= width - SPARE
    text = " ".join(file.getvalue().split())
    for figure in (
        "6,802/20,000 12 failed 2,000 under way 0:16:40 ETA 0:32:20 6.80 rows/s",
        "1,358 prompt tokens/s 136 output tokens/s 1.47 per 1,000 rows 73.64 per million output tokens",
    ):
        assert figure in text
