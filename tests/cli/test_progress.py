"""What the bar says of the time that is left."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from millstream.batch.tally import Tally
from millstream.cli.progress import eta


@pytest.mark.parametrize(
    ("skipped", "completed", "failed", "seconds", "shown"),
    [
        (0, 0, 0, 0.0, "–"),
        (900, 0, 0, 0.0, "–"),
        (0, 90, 10, 10.0, "0:01:30"),
        (800, 100, 0, 10.0, "0:00:10"),  # lines that were answered before took no time, and say nothing
        (0, 1000, 0, 10.0, "0:00:00"),
    ],
)
def test_it_is_told_from_the_lines_of_this_run(
    skipped: int, completed: int, failed: int, seconds: float, shown: str
) -> None:
    tally = Tally()
    tally.skipped, tally.completed, tally.failed = skipped, completed, failed
    run: Any = SimpleNamespace(tally=tally, elapsed_s=seconds, source=SimpleNamespace(estimated_lines=1000))
    assert eta(run) == shown
