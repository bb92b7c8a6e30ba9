"""What a service writes: lines for machines and people, and one a minute of what fails all the time."""

from __future__ import annotations

import asyncio
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
    now = [0.0]
    with structlog.testing.capture_logs() as lines:
        failing = FailuresOf("batch failed", monotonic=lambda: now[0])
        for now[0], name in ((0.0, "a"), (5.0, "b"), (30.0, "a"), (59.0, "a"), (60.0, "a")):
            failing.failed(name, batch_id=name)
    assert [(line["batch_id"], line["times"]) for line in lines] == [("a", 1), ("b", 1), ("a", 3)]


def test_what_has_not_failed_for_a_minute_is_forgotten() -> None:
    """Nobody tells of a batch that another gateway has ended."""
    now = [0.0]
    with structlog.testing.capture_logs() as lines:
        failing = FailuresOf("batch failed", monotonic=lambda: now[0])
        for number in range(1000):
            now[0] = number
            failing.failed(f"batch_{number}")
            failing.failed("flapping")
    assert len(failing._logs) == 61
    assert sum(line["times"] for line in lines) == 1000 + 961


def test_a_group_is_told_by_its_first_error() -> None:
    def fail(prompt: str) -> None:
        raise RuntimeError(f"not with {prompt}")

    async def grouped() -> None:
        async with asyncio.TaskGroup() as outer, asyncio.TaskGroup():
            await asyncio.sleep(0)
            outer.create_task(asyncio.to_thread(fail, "these words"))

    stream = io.StringIO()
    try:
        log_setup.configure("console", "info", stream)
        try:
            asyncio.run(grouped())
        except ExceptionGroup as error:
            structlog.get_logger().error("ours", exc_info=log_setup.withheld(error))
    finally:
        structlog.reset_defaults()
        logging.getLogger().handlers.clear()
    assert "in fail" in stream.getvalue()
    assert "RuntimeError, whose text" in stream.getvalue()
    assert "these words" not in stream.getvalue()


def test_an_end_says_how_long_it_lasted() -> None:
    now = [0.0]
    trouble = FailureLog("server does not answer", "server answers again", monotonic=lambda: now[0])
    with structlog.testing.capture_logs() as lines:
        trouble.failed()
        for now[0] in (20.0, 21.0, 22.0, 23.0):  # it hung: there was one failure
            trouble.worked()
    assert [line["seconds"] for line in lines[1:]] == [20.0]
