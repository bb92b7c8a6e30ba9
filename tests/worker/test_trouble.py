"""What fails all the time is a line a minute."""

from __future__ import annotations

import structlog

from millstream_worker.observe.trouble import Trouble


def test_a_trouble_is_a_line_as_it_begins_one_a_minute_and_one_at_its_end() -> None:
    now = [0.0]
    trouble = Trouble("server does not answer", "server answers again", monotonic=lambda: now[0])
    with structlog.testing.capture_logs() as lines:
        trouble.worked()
        for _ in range(900):  # 90 s
            trouble.failed(error="no route")
            trouble.worked()  # of another node
            now[0] += 0.1
        now[0] += 5
        trouble.worked()
        trouble.worked()
        trouble.failed(error="again")
    told = [(line["event"], line.get("times"), line["log_level"]) for line in lines]
    assert told == [
        ("server does not answer", 1, "warning"),
        ("server does not answer", 600, "warning"),
        ("server answers again", None, "info"),
        ("server does not answer", 1, "warning"),
    ]
    assert round(lines[2]["seconds"]) == 90


def test_what_never_says_that_it_works_is_a_line_a_minute() -> None:
    now = [0.0]
    trouble = Trouble("keys of jobs are damaged", level="error", monotonic=lambda: now[0])
    with structlog.testing.capture_logs() as lines:
        for number in range(400 * 7):  # 400 jobs, each looked at every 10 s
            now[0] = number / 40
            trouble.failed(of_job=f"0-{number % 400}")
    assert [(line["job_ids"], line["times"], line["log_level"]) for line in lines] == [
        (["0-0"], 1, "error"),
        ([f"0-{number}" for number in range(1, 21)], 2400, "error"),
    ]
