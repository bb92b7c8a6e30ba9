"""`millstream batch run` as a command: exit codes, messages, and its death in the middle of a run."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from support.answering import answering, completion, read_rows, write_lines
from support.commands import invoke, process
from support.servers import Server, free_port

DOCUMENTS = [completion(f"doc-{i}", f"text {i}") for i in range(60)]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "in.jsonl", DOCUMENTS)


def test_a_run_and_its_summary(valkey: Server, source: Path, tmp_path: Path) -> None:
    write_lines(source, [*DOCUMENTS, completion("x", tempo=1, metadata={"expected": "hello"})])
    out = tmp_path / "out.jsonl"
    with answering(valkey.url):
        done = invoke("batch", "run", source, "-o", out, "--redis-url", valkey.url, "--price-per-hour", 2)
    assert done.exit_code == 0, done.output
    assert len(read_rows(out)) == 61
    assert "61 completed, 0 failed" in done.stdout
    assert "1 of 1 answers are the expected ones" in done.stdout
    assert "per million output tokens, at 2 per hour" in done.stdout
    assert "unknown fields were ignored, in so many lines: tempo (1)" in done.stderr


def test_json_for_programs_and_strict(valkey: Server, source: Path, tmp_path: Path) -> None:
    write_lines(source, [*DOCUMENTS[:3], "{bad"])
    command = ("batch", "run", source, "-o", tmp_path / "out.jsonl", "--redis-url", valkey.url, "--json")
    with answering(valkey.url):
        done = invoke(*command)
        assert done.exit_code == 0
        summary = json.loads(done.stdout)
        assert (summary["completed"], summary["failed"]) == (3, 1)
        assert invoke(*command, "--strict").exit_code == 1
        again = json.loads(invoke(*command).stdout)
        assert (again["completed"], again["failed"], again["skipped"]) == (0, 0, 4)
        write_lines(source, [*DOCUMENTS[:3], completion("mended")])
        retried = invoke(*command, "--retry-failed", "--strict")
    assert retried.exit_code == 0
    assert json.loads(retried.stdout)["completed"] == 1


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_run_that_dies_goes_on_without_computing_twice(
    valkey: Server, source: Path, tmp_path: Path, number: signal.Signals
) -> None:
    out = tmp_path / "out.jsonl"
    command = ("batch", "run", source, "-o", out, "--redis-url", valkey.url, "--window", 20)
    with answering(valkey.url) as worker:
        worker.after = 25
        with process(*command) as running:
            assert worker.full_stop.wait(30)
            running.send_signal(number)
            _, messages = running.communicate(timeout=30)
        if number is not signal.SIGKILL:
            assert running.returncode == 130, messages
            assert "run the same command again to go on" in messages
            assert "Traceback" not in messages
        worker.gate.set()
        done = invoke(*command)
        assert done.exit_code == 0, done.output
    rows = read_rows(out)
    assert sorted(row["custom_id"] for row in rows) == sorted(line["custom_id"] for line in DOCUMENTS)
    assert len(worker.answered) == len(DOCUMENTS)
    assert set(worker.answered.values()) == {1}


def test_an_output_in_use_is_refused(valkey: Server, source: Path, tmp_path: Path) -> None:
    command = ("batch", "run", source, "-o", tmp_path / "out.jsonl", "--redis-url", valkey.url)
    with answering(valkey.url) as worker:
        worker.after = 1
        with process(*command):
            assert worker.full_stop.wait(30)
            second = invoke(*command)
        worker.gate.set()
    assert second.exit_code == 2
    assert "another run is writing this file" in second.stderr


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("-o", "in.jsonl"), "is the input; choose another file"),
        (("-o", "out.jsonl", "--window", 0), "window: must be at least 1"),
        (("-o", "out.jsonl", "--model", "m"), "--model: is for the worker of an embedded server"),
        (("-o", "out.jsonl", "--queue", "a b"), "queue: 1 to 100 characters"),
        ((), "Missing option"),
    ],
)
def test_wrong_arguments(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[object, ...], problem: str
) -> None:
    monkeypatch.chdir(tmp_path)
    url = f"redis://127.0.0.1:{free_port()}"
    done = invoke("batch", "run", source.name, *arguments, "--redis-url", url)
    assert done.exit_code == 2, done.output
    assert problem in done.stderr


def test_a_missing_input_and_a_missing_server(source: Path, tmp_path: Path) -> None:
    url = f"redis://127.0.0.1:{free_port()}"
    missing = invoke("batch", "run", tmp_path / "no.jsonl", "-o", tmp_path / "o.jsonl", "--redis-url", url)
    assert missing.exit_code == 2
    assert "cannot be read" in missing.stderr
    unreachable = invoke("batch", "run", source, "-o", tmp_path / "o.jsonl", "--redis-url", url)
    assert unreachable.exit_code == 3
    assert url.removeprefix("redis://") in unreachable.stderr
