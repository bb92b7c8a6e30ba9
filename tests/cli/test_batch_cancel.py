"""A batch run that is taken back: by command after its death, and by Ctrl-C."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import redis
from support.answering import Answering, answering, completion, read_rows, write_lines
from support.commands import environment, invoke, process
from support.servers import Server

from millstream import Client
from millstream.batch.files.journal import Journal
from millstream.cli.batch.batch_cancel import _command

COUNT = 120
LINES = [completion(f"doc-{i}", f"text {i}") for i in range(COUNT)]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "in.jsonl", LINES)


def states(server: Server) -> dict[str, str]:
    """Of all jobs on the server."""
    with redis.Redis(port=server.port, decode_responses=True) as client:
        keys = list(client.scan_iter("*:job:*", count=1000))
        with client.pipeline() as pipeline:
            for key in keys:
                pipeline.hget(key, "state")
            return dict(zip(keys, map(str, pipeline.execute()), strict=True))


def killed(command: tuple[object, ...], notes: Path, size: int) -> None:
    """Kill the run when its notes have grown to this size: somewhere in the middle of its submissions."""
    with process(*command) as running:
        while not notes.exists() or notes.stat().st_size < size:
            assert running.poll() is None, running.communicate()
        running.kill()


def kill_when_submitted(server: Server, worker: Answering, command: tuple[object, ...]) -> None:
    """Of a run of 20 lines none is answered."""
    worker.gate.clear()
    with process(*command) as running:
        while len(states(server)) < 20:
            assert running.poll() is None
        running.kill()


@pytest.mark.slow
def test_a_killed_run_is_cancelled_or_goes_on(valkey: Server, source: Path, tmp_path: Path) -> None:
    out, notes = tmp_path / "out.jsonl", tmp_path / "out.run.jsonl"
    command = ("batch", "run", source, "-o", out, "--redis-url", valkey.url, "--window", 20)
    cancel = ("batch", "cancel", out, "--redis-url", valkey.url, "--json")
    with answering(valkey.url) as worker:
        grown = 1
        for round_, more in enumerate((150, 700, 1_200, 1_500)):
            killed(command, notes, grown + more)
            if round_ % 2:
                source.rename(tmp_path / "away")  # it is not needed
                done = invoke(*cancel)
                (tmp_path / "away").rename(source)
                assert done.exit_code in (0, 4), done.output  # 4: none had reached the server
                assert "queued" not in states(valkey).values()
                again = json.loads(invoke(*cancel).stdout)
                assert (again["cancelled"], again["running"]) == (0, 0)
            grown = notes.stat().st_size
        done = invoke(*command, "--json")
    summary = json.loads(done.stdout)
    assert (done.exit_code, summary["failed"]) == (0, 0), done.output
    assert len(read_rows(out)) == COUNT
    assert {row["custom_id"] for row in read_rows(out)} == {line["custom_id"] for line in LINES}
    assert set(states(valkey).values()) <= {"completed", "cancelled"}
    assert read_rows(tmp_path / "out.errors.jsonl") == []
    assert all(count == 1 for count in worker.answered.values())


def test_a_cancelled_run_computes_nothing_more(valkey: Server, source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    command = ("batch", "run", source, "-o", out, "--redis-url", valkey.url, "--window", 60)
    cancel = ("batch", "cancel", out, "--redis-url", valkey.url)
    with answering(valkey.url) as worker:
        worker.after = 30
        with process(*command) as running:
            assert worker.full_stop.wait(30)
            while out.read_bytes().count(b"\n") < 30:
                assert running.poll() is None
            while sum(state in ("queued", "running") for state in states(valkey).values()) < 60:
                assert running.poll() is None
            refused = invoke(*cancel)
            assert (refused.exit_code, "another run is writing this file" in refused.stderr) == (2, True)
            running.send_signal(signal.SIGINT)
            _, messages = running.communicate(timeout=30)
        assert "60 jobs of this run stay in the queue, and workers go on with them; to cancel: " in messages
        assert f"millstream batch cancel {out} --redis-url …" in messages
        assert "within" not in messages  # nobody is there to press it again
        done = invoke(*cancel)
        assert (done.exit_code, done.stdout.split()[1]) == (0, "cancelled,")
        counts = [int(word) for word in done.stdout.split() if word.isdigit()]
        assert sum(counts) == 60
        assert counts[0] >= 50
        worker.gate.set()
        while "running" in states(valkey).values():
            time.sleep(0.01)
        computed = len(worker.answered)
        assert computed <= 30 + counts[2]
        assert invoke(*command, "--strict").exit_code == 0
    assert len(read_rows(out)) == COUNT


def test_jobs_that_the_server_does_not_know(valkey: Server, tmp_path: Path) -> None:
    out = tmp_path / "an out.jsonl"
    with Journal(out) as journal:
        journal.submits("default", [journal.own_id("a", "d" * 32)])
        hint = _command(journal, valkey.url)
    done = invoke("batch", "cancel", out, "--redis-url", valkey.url)
    assert done.exit_code == 4
    assert "0 had ended before" in done.stdout
    assert "1 jobs are not known to this server" in done.stderr
    assert hint == f"millstream batch cancel '{out}' --redis-url …"


def test_jobs_that_were_cancelled_one_by_one_run_again(valkey: Server, tmp_path: Path) -> None:
    """As they are where `batch cancel` itself was killed: no note says that they are cancelled."""
    source, out = write_lines(tmp_path / "in.jsonl", LINES[:20]), tmp_path / "out.jsonl"
    command = ("batch", "run", source, "-o", out, "--redis-url", valkey.url)
    with answering(valkey.url) as worker:
        kill_when_submitted(valkey, worker, command)
        with Client(valkey.url) as client:
            for key, state in states(valkey).items():
                if state == "queued":
                    client.cancel(key.rpartition(":")[2])
        worker.gate.set()
        assert invoke(*command, "--strict").exit_code == 0
    assert len(read_rows(out)) == 20


def test_cancelling_at_the_first_interrupt(valkey: Server, source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    command = ("batch", "run", source, "-o", out, "--redis-url", valkey.url, "--cancel-on-interrupt")
    with answering(valkey.url) as worker:
        worker.gate.clear()
        with process(*command) as running:
            while len(states(valkey)) < COUNT:
                assert running.poll() is None
            running.send_signal(signal.SIGTERM)
            _, messages = running.communicate(timeout=30)
        assert running.returncode == 130
        assert " cancelled, 0 had ended before, " in messages
        assert "queued" not in states(valkey).values()


def test_a_second_ctrl_c_cancels(valkey: Server, source: Path, tmp_path: Path) -> None:
    command = ("batch", "run", source, "-o", tmp_path / "out.jsonl", "--redis-url", valkey.url)
    mine, its = pty.openpty()
    with answering(valkey.url) as worker:
        worker.gate.clear()
        running = subprocess.Popen(
            [sys.executable, "-m", "millstream", *map(str, command)],
            stdout=subprocess.DEVNULL,
            stderr=its,
            env=environment(TERM="xterm", COLUMNS="200"),
        )
        os.close(its)
        while len(states(valkey)) < COUNT:
            assert running.poll() is None
        running.send_signal(signal.SIGINT)
        shown = b""
        while b"Ctrl-C again" not in shown:
            shown += os.read(mine, 10_000)
        assert "queued" in states(valkey).values()
        running.send_signal(signal.SIGINT)
        while b"had ended before" not in shown:
            shown += os.read(mine, 10_000)
        assert running.wait(30) == 130
        os.close(mine)
        assert "queued" not in states(valkey).values()


def test_jobs_of_lines_that_are_gone_are_cancelled(valkey: Server, tmp_path: Path) -> None:
    source, out = write_lines(tmp_path / "in.jsonl", LINES[:20]), tmp_path / "out.jsonl"
    command = ("batch", "run", source, "-o", out, "--redis-url", valkey.url)
    with answering(valkey.url) as worker:
        kill_when_submitted(valkey, worker, command)
        write_lines(source, [completion("doc-0", "edited"), *LINES[1:15], completion("doc-15", "edited")])
        worker.gate.set()
        done = invoke(*command)
    assert done.exit_code == 0, done.output
    assert "jobs of an earlier run that no line of IN asks for now were cancelled" in done.stderr
    texts = {row["custom_id"]: row["response"]["body"]["choices"][0]["text"] for row in read_rows(out)}
    assert len(texts) == len(read_rows(out)) == 16
    assert (texts["doc-0"], texts["doc-1"], texts["doc-15"]) == ("EDITED", "TEXT 1", "EDITED")


def test_what_is_no_run_cannot_be_cancelled(tmp_path: Path) -> None:
    done = invoke("batch", "cancel", tmp_path / "typo.jsonl", "--redis-url", "redis://127.0.0.1:1")
    assert done.exit_code == 2
    assert "there is no typo.run.jsonl beside it" in done.stderr
    assert list(tmp_path.iterdir()) == []
