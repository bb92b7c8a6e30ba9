"""`millstream batch run` as a command: exit codes, messages, and its death in the middle of a run."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest
from support.batch_files import BatchFiles, answers_of, documents
from support.commands import assert_refused, invoke, on_terminal, process
from support.limits import no_file_above
from support.screen import screen
from support.servers.servers import free_port
from support.workers.answering_worker import answering, completion, read_rows, write_lines

PAGE = (Path(__file__).parents[3] / "ops" / "pages" / "batch.md").read_text("utf-8")


def nowhere() -> str:
    """Of a server that is not there."""
    return f"redis://127.0.0.1:{free_port()}"


def test_a_run_and_its_summary(batch: BatchFiles) -> None:
    batch.write(*documents(60), completion("x", tempo=1, metadata={"expected": "hello"}))
    with answering(batch.server.url):
        done = invoke(*batch.command, "--price-per-hour", 2)
    assert done.exit_code == 0, done.output
    assert len(read_rows(batch.out)) == 61
    assert "61 completed, 0 failed" in done.stdout
    assert "1 of 1 answers are the expected ones" in done.stdout
    speed = r"\nspeed +[\d.,]+ rows/s, [\d.,]+ prompt tokens/s, [\d.,]+ output tokens/s\n"
    assert re.search(r"\ntime +[\d.]+ s\n", done.stdout)
    assert re.search(speed, done.stdout)
    assert re.search(r"\ncost +[\d.e-]+ per 1,000 rows, [\d.,]+ per million output tokens, at 2", done.stdout)
    assert "fields that nothing reads: tempo in 1 line\n" in done.stderr


def test_equal_lines_are_computed_once_unless_switched_off(batch: BatchFiles) -> None:
    batch.write(*(completion(f"{i}", temperature=0) for i in range(5)))
    with answering(batch.server.url) as worker:
        once = invoke(*batch.command)
        assert (once.exit_code, worker.computed_once()) == (0, 1)
        batch.out.unlink()
        apart = invoke(*batch.command, "--no-reuse")
        assert (apart.exit_code, worker.computed_once()) == (0, 6)
    assert "\nreused    4 of them have the answers of equal lines\n" in once.stdout
    assert re.search(r"\nspeed +[\d.,]+ rows/s \([\d.,]+ computed\), ", once.stdout)
    assert "reused" not in apart.stdout
    assert " computed)" not in apart.stdout


def test_json_for_programs_and_strict(batch: BatchFiles) -> None:
    batch.write(*documents(3), "{bad")
    with answering(batch.server.url):
        done = invoke(*batch.command, "--json")
        assert done.exit_code == 0
        summary = json.loads(done.stdout)
        assert (summary["completed"], summary["failed"]) == (3, 1)
        assert [name for name in summary if f"`{name}`" not in PAGE] == []
        assert invoke(*batch.command, "--json", "--strict").exit_code == 1
        again = json.loads(invoke(*batch.command, "--json").stdout)
        assert (again["completed"], again["failed"], again["skipped"]) == (0, 0, 4)
        batch.write(*documents(3), completion("mended"))
        retried = invoke(*batch.command, "--json", "--retry-failed", "--strict")
    assert retried.exit_code == 0
    assert json.loads(retried.stdout)["completed"] == 1


def test_a_run_without_any_success_says_why_each_time(batch: BatchFiles) -> None:
    lines = [completion(f"n{i}", n=0) for i in range(3)] + [completion(f"f{i}", "fail") for i in range(2)]
    batch.write(*lines)
    with answering(batch.server.url):
        done = invoke(*batch.command)
        again = invoke(*batch.command)
        batch.write(*lines, *documents(1))
        mended = invoke(*batch.command)
    assert done.exit_code == 1
    first, second = done.stderr.splitlines()[-2:]
    assert first.startswith("millstream: 3 × body.n: ")
    assert second == "millstream: 2 × body.prompt: it said fail"
    assert again.exit_code == 1
    told = "0 completed, 0 failed, 5 answered before, 5 of them failed\n"
    assert told in again.stdout
    assert mended.exit_code == 0


def test_an_unused_queue_is_named_before_anything_is_submitted(batch: BatchFiles) -> None:
    models = ["gpt-4o-mini", "gpt-4o-mini", "used", "default", "no name of a queue"]
    batch.write(*(completion(f"{i}", model=model) for i, model in enumerate(models)))
    with answering(batch.server.url, "used"), answering(batch.server.url) as worker:
        invoke("submit", "x", "--queue", "used", "--wait", "--redis-url", batch.server.url)
        problem = "does not have: 'gpt-4o-mini' in 2 lines; --queue NAME sends all lines to one queue"
        assert_refused(problem, *batch.command)
        assert not worker.answered
        assert invoke(*batch.command, "--queue", "default", "--strict").exit_code == 0


@pytest.mark.parametrize(
    ("sent", "ignored", "code"),
    [
        (signal.SIGKILL, "USR1", -signal.SIGKILL),
        (signal.SIGINT, "USR1", 130),
        (signal.SIGTERM, "INT", 130),  # in the background of a script, where Ctrl-C is not for it
        pytest.param(signal.SIGHUP, "USR1", 130, marks=pytest.mark.slow),
        (signal.SIGHUP, "HUP", 0),  # under nohup it goes on
    ],
)
def test_a_run_that_dies_goes_on_without_computing_twice(
    batch: BatchFiles, sent: signal.Signals, ignored: str, code: int
) -> None:
    """Whatever signals its caller ignores."""
    command = (*batch.command, "--window", 20)
    with answering(batch.server.url) as worker:
        worker.after = 25
        trap = ("sh", "-c", f"trap '' {ignored}; exec \"$@\"", "sh")
        with process(*command, before=trap) as running:
            assert worker.full_stop.wait(30)
            running.send_signal(sent)
            if code == 0:
                worker.gate.set()
            _, messages = running.communicate(timeout=30)
        assert running.returncode == code, messages
        assert "Traceback" not in messages
        assert ("run the same command again to go on" in messages) is (code == 130)
        worker.gate.set()
        done = invoke(*command)
        assert done.exit_code == 0, done.output
    assert batch.answers() == answers_of(60)
    assert worker.computed_once() == 60


def test_durability_that_is_not_reached_is_told(batch: BatchFiles) -> None:
    with answering(batch.server.url):
        refused = invoke(*batch.command, "--json", "--durability", "aof")
        assert refused.exit_code == 2
        assert "durability: the server keeps no append-only file" in refused.stdout
        done = invoke(*batch.command, "--json", "--durability", "replicas", "--durability-timeout-s", 0.1)
    assert done.exit_code == 0
    assert json.loads(done.stdout)["not_durable"] == 60
    assert "60 jobs were queued, but not as durable in time as --durability asks" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("-o", "in.jsonl"), "is the input; choose another file"),
        (("-o", "out.jsonl", "--window", 0), "window: must be at least 1"),
        (("-o", "out.jsonl", "--price-per-hour", "inf"), "--price-per-hour: must be a number"),
        (("-o", "out.jsonl", "--model", "m"), "--model: applies to an embedded worker"),
        (("-o", "out.jsonl", "--queue", "a b"), "queue: 1 to 100 characters"),
        (("-o", "."), "OUT: names no file"),
        (("-o", "in.jsonl/out.jsonl"), "OUT: in.jsonl is no folder"),
        (("-o", "typo/out.jsonl"), "OUT: the folder typo does not exist"),
        (("-o", "-"), "--output: needs --journal FILE"),
        (("-o", "-", "--journal", "-"), "--journal: names no file"),
        (("-o", "out.jsonl", "--journal", "j"), "--journal: is for -o -"),
        (("-o", "out.jsonl", "--redo-changed", "--keep-answers"), "contradicts --keep-answers"),
        ((), "Missing option"),
    ],
)
def test_wrong_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[object, ...], problem: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "in.jsonl", documents(1))
    assert_refused(problem, "batch", "run", "in.jsonl", *arguments, "--redis-url", nowhere())


def test_a_place_is_refused_before_a_model_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_lines(tmp_path / "in.jsonl", documents(1))
    monkeypatch.delenv("MILLSTREAM_REDIS_URL", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(source))  # a model would be kept in it
    assert_refused("typo does not exist", "batch", "run", source, "-o", tmp_path / "typo" / "out.jsonl")


def test_an_error_does_not_stand_among_rows(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", documents(1))
    to_journal = ("-o", "-", "--journal", tmp_path / "j")
    done = invoke("batch", "run", source, *to_journal, "--redis-url", nowhere(), "--json")
    assert (done.exit_code, done.stdout) == (3, "")
    assert '"type":"Unavailable"' in done.stderr
    assert "in the queue" not in done.stderr  # the server was never there
    assert done.stderr.count("Connect call failed") == 1


def test_a_missing_input_and_a_missing_server(tmp_path: Path) -> None:
    url, source = nowhere(), tmp_path / "in.jsonl"
    command = ("batch", "run", source, "-o", tmp_path / "o.jsonl", "--redis-url", url)
    assert_refused("cannot be read", *command)
    write_lines(source, documents(1))
    assert_refused(url.removeprefix("redis://"), *command, code=3)


def test_an_empty_input_is_answered(batch: BatchFiles) -> None:
    batch.write("", "")
    done = invoke(*batch.command, "--strict")
    assert (done.exit_code, done.stdout.splitlines()[0]) == (0, "lines     0 completed, 0 failed")
    assert batch.out.read_bytes() == b""
    assert f"{batch.source} has no lines; there is nothing to do" in done.stderr


def test_a_full_disk_ends_the_run_which_goes_on_later(batch: BatchFiles) -> None:
    batch.write(*(completion(f"doc-{i}", "x" * 9_000) for i in range(40)))
    with answering(batch.server.url) as worker:
        with no_file_above(200_000):
            full = invoke(*batch.command)
        assert full.exit_code == 3
        assert f"{batch.out} cannot be written: File too large" in full.stderr
        assert 0 < len(read_rows(batch.out)) < 40
        assert invoke(*batch.command).exit_code == 0
    assert len(batch.answers()) == worker.computed_once() == 40


@pytest.mark.parametrize("interrupted", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_progress_bar_on_a_terminal(batch: BatchFiles, interrupted: bool) -> None:
    with answering(batch.server.url) as worker, on_terminal(*batch.command, columns=60) as terminal:
        worker.after = 25
        terminal.read_until(b"25/60")
        assert len(read_rows(batch.out)) == 25  # rows are written as they finish
        if interrupted:
            terminal.press_ctrl_c()
        else:
            worker.gate.set()
        terminal.read_until(b"to go on" if interrupted else b"60/60")
        assert terminal.running.wait(30) == (130 if interrupted else 0)
    left = screen(terminal.shown.decode(errors="replace"), 60)
    count = "25/60  0 failed  35 under way" if interrupted else "60/60  0 failed  0 under way"
    [bar] = [place for place, line in enumerate(left) if "/60" in line]  # it stands there once
    assert count in left[bar]
    assert "rows/s" in left[bar + 1]
