"""What a service writes: lines for machines and people, and one a minute of what fails all the time."""

from __future__ import annotations

import errno
import io
import json
import logging
from typing import Literal

import pytest
import structlog

from millstream.logs import log_setup
from millstream.logs.failure_log import FailureLog, FailuresOf


def test_a_failure_is_logged_at_its_start_each_minute_and_at_end() -> None:
    now = [0.0]
    trouble = FailureLog("server does not answer", "server answers again", monotonic=lambda: now[0])
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
        ("server answers again", None, "warning"),
        ("server does not answer", 1, "warning"),
    ]
    assert round(lines[2]["seconds"]) == 90


def test_what_never_says_that_it_works_is_a_line_a_minute() -> None:
    now = [0.0]
    trouble = FailureLog("keys of jobs are damaged", level="error", monotonic=lambda: now[0])
    with structlog.testing.capture_logs() as lines:
        for number in range(400 * 7):  # 400 jobs, each looked at every 10 s
            now[0] = number / 40
            trouble.failed(of_job=f"0-{number % 400}")
    assert [(line["job_ids"], line["times"], line["log_level"]) for line in lines] == [
        (["0-0"], 1, "error"),
        ([f"0-{number}" for number in range(1, 21)], 2400, "error"),
    ]


def test_logs_are_json_for_machines_and_lines_for_people() -> None:
    try:
        machine, person = io.StringIO(), io.StringIO()
        log_setup.configure("auto", "info", machine)
        structlog.get_logger().info("job ended", job_id="0-a", attempt=2)
        structlog.get_logger().debug("not shown")
        [line] = machine.getvalue().splitlines()
        record = json.loads(line)
        assert (record["event"], record["job_id"], record["attempt"], record["level"]) == (
            "job ended",
            "0-a",
            2,
            "info",
        )
        log_setup.configure("console", "info", person)
        structlog.get_logger().info("job ended", job_id="0-a")
        assert "job ended" in person.getvalue()
        assert "{" not in person.getvalue()
    finally:
        structlog.reset_defaults()


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_tracebacks_do_not_tell_what_is_in_variables(log_format: Literal["json", "console"]) -> None:
    def fail(prompt: str) -> None:
        raise RuntimeError(f"{len(prompt)} letters")

    stream = io.StringIO()
    try:
        log_setup.configure(log_format, "info", stream)
        try:
            fail("between you and " + "me")
        except RuntimeError:
            structlog.get_logger().exception("ours")
            logging.getLogger("asyncio").exception("theirs")
    finally:
        structlog.reset_defaults()
        logging.getLogger().handlers.clear()
    assert stream.getvalue().count("18 letters") == 2
    assert "between you and me" not in stream.getvalue()


class FullDisk(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, "no space left on device")


def test_a_line_that_cannot_be_written_ends_nothing() -> None:
    closed = io.StringIO()
    closed.close()
    try:
        for stream in (FullDisk(), closed):
            log_setup.configure("json", "info", stream)
            structlog.get_logger().info("job ended")
            logging.getLogger("asyncio").warning("theirs")
    finally:
        structlog.reset_defaults()
        logging.getLogger().handlers.clear()


def test_lines_of_libraries_have_the_same_shape() -> None:
    stream = io.StringIO()
    try:
        log_setup.configure("json", "info", stream)
        structlog.get_logger().warning("ours", job_id="0-a")
        logging.getLogger("uvicorn.error").warning("theirs")
        logging.getLogger("uvicorn.error").info("not shown")
    finally:
        structlog.reset_defaults()
        logging.getLogger().handlers.clear()
    ours, theirs = map(json.loads, stream.getvalue().splitlines())
    assert list(ours) == ["timestamp", "level", "event", "job_id"]
    assert list(theirs) == ["timestamp", "level", "event", "logger"]
    assert (theirs["event"], theirs["logger"]) == ("theirs", "uvicorn.error")


def test_failures_of_one_thing_hide_none_of_another() -> None:
    with structlog.testing.capture_logs() as lines:
        failing = FailuresOf("batch failed")
        for name in ("a", "b", "a"):
            failing.failed(name, batch_id=name)
        failing.worked("a")
        failing.failed("a", batch_id="a")
    assert [line["batch_id"] for line in lines] == ["a", "b", "a"]


def test_an_end_says_how_long_it_lasted() -> None:
    now = [0.0]
    trouble = FailureLog("server does not answer", "server answers again", monotonic=lambda: now[0])
    with structlog.testing.capture_logs() as lines:
        trouble.failed()
        for now[0] in (20.0, 21.0, 22.0, 23.0):  # it hung: there was one failure
            trouble.worked()
    assert [line["seconds"] for line in lines[1:]] == [20.0]
