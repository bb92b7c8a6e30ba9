"""What a run says while its server is away, full or without a disk, and of its jobs afterwards."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from support.batch_files import BatchFiles, answers_of, documents
from support.commands import Terminal, on_terminal, process
from support.screen import screen
from support.servers.servers import Server, lasting_server
from support.workers.answering_worker import Responder, answering, completion

from millstream.batch.files.journal import Journal
from millstream.cli.batch.batch_cancel import say_what_stays
from millstream.cli.embedded.stack import Stack

AWAY = "the run goes on if it answers within 60 s"
BACK = "the server answers again after"


@pytest.fixture
def lasting(tmp_path: Path) -> Iterator[BatchFiles]:
    """On a server of its own, which keeps what it has through a restart."""
    with lasting_server() as server:
        files = BatchFiles(server, tmp_path)
        files.write(*documents(60))
        yield files


class Messages:
    """Standard error of a running command."""

    def __init__(self, running: subprocess.Popen[str]) -> None:
        self.running = running
        self.lines: list[str] = []

    def read_until(self, text: str) -> None:
        assert self.running.stderr is not None
        while not any(text in line for line in self.lines):
            line = self.running.stderr.readline()
            assert line, f"{text!r} was not said: {self.lines}"
            self.lines.append(line.rstrip("\n"))

    def with_text(self, text: str) -> list[str]:
        return [line for line in self.lines if text in line]


def pause(server: Server, number: signal.Signals) -> None:
    assert server.process is not None
    os.kill(server.process.pid, number)


def ended(running: subprocess.Popen[str], worker: Responder) -> int:
    worker.gate.set()
    return running.wait(30)


@pytest.mark.slow
@pytest.mark.parametrize("columns", [80, 200])
def test_a_server_that_hangs_is_shown_and_told_twice(lasting: BatchFiles, columns: int) -> None:
    with answering(lasting.server.url) as worker, on_terminal(*lasting.command, columns=columns) as terminal:
        worker.after = 25
        terminal.read_until(b"25/60")
        pause(lasting.server, signal.SIGSTOP)
        terminal.read_until(b"server does not answer, 4 s")
        during = lines_of(terminal, columns)
        pause(lasting.server, signal.SIGCONT)
        terminal.read_until(BACK.encode())
        worker.gate.set()
        terminal.read_until(b"60/60")
        assert terminal.running.wait(30) == 0
    bar = next(place for place, line in enumerate(during) if "25/60" in line)
    shown = "  ".join(during[bar:])
    assert re.search(r"server does not answer, 4 s  0:00:\d\d  ETA –", shown), shown
    left = lines_of(terminal, columns)
    text = "".join(left)  # the terminal wraps long messages
    assert (text.count(AWAY), text.count(BACK)) == (1, 1)
    assert "does not answer," not in text
    assert [line for line in left if "/60" in line] == [line for line in left if "60/60" in line]
    assert lasting.answers() == answers_of(60)


def lines_of(terminal: Terminal, columns: int) -> list[str]:
    return screen(terminal.shown.decode(errors="replace"), columns)


@pytest.mark.slow
def test_a_server_that_restarts_is_told_without_terminal(lasting: BatchFiles) -> None:
    with answering(lasting.server.url) as worker, process(*lasting.command) as running:
        said = Messages(running)
        worker.after = 25
        assert worker.full_stop.wait(30)
        lasting.server.kill()
        said.read_until(AWAY)
        lasting.server.start()
        said.read_until(BACK)
        assert ended(running, worker) == 0
    assert "Connect call failed" in said.with_text(AWAY)[0]
    assert [len(said.with_text(text)) for text in (AWAY, BACK, "no worker serves")] == [1, 1, 0]
    assert lasting.answers() == answers_of(60)
    assert worker.computed_once() == 60


@pytest.mark.slow
def test_a_server_without_a_disk_is_told_by_name(tmp_path: Path) -> None:
    with Server("valkey", save="3600 100000") as server:
        batch = BatchFiles(server, tmp_path)
        batch.write(*documents(60))
        in_the_way = server.folder / "dump.rdb"
        with answering(server.url) as worker, process(*batch.command, "--window", 30) as running:
            said = Messages(running)
            worker.after = 25
            assert worker.full_stop.wait(30)
            in_the_way.mkdir()
            with server.admin() as direct:
                direct.bgsave()
                said.read_until("the server takes no writes: MISCONF ")
                pause(server, signal.SIGSTOP)
                said.read_until(AWAY)
                said.lines.clear()
                pause(server, signal.SIGCONT)
                said.read_until("the server takes no writes: MISCONF ")
                in_the_way.rmdir()
                direct.bgsave()
            said.read_until("the server takes writes again after")
            assert ended(running, worker) == 0
    assert "no worker serves" not in "".join(said.lines)


@pytest.mark.slow
def test_jobs_that_a_full_server_refused_do_not_stay(batch: BatchFiles) -> None:
    batch.write(*(completion(f"doc-{i}", "x" * 9_000) for i in range(300)))
    with redis.Redis(port=batch.server.port) as direct, answering(batch.server.url) as worker:
        worker.gate.clear()
        direct.config_set("maxmemory", direct.info("memory")["used_memory"] + 2**20)
        with process(*batch.command) as running:
            Messages(running).read_until("finds the server at its maxmemory")
            running.send_signal(signal.SIGINT)
            _, messages = running.communicate(timeout=30)
        there = len(batch.states())
        direct.config_set("maxmemory", "0")
    assert 0 < there < 300
    assert f"{there} jobs of this run stay in the queue, and workers go on with them" in messages


@pytest.mark.parametrize(
    ("accepted", "absent", "unknown", "message"),
    [
        (2, 0, 0, "2 jobs of this run stay in the queue, and workers go on with them; to cancel: "),
        (1, 7, 0, "1 job of this run stays in the queue, and workers go on with it; to cancel: "),
        (1, 0, 2, "up to 3 jobs of this run may be in the queue, and workers go on with them; to cancel: "),
        (0, 3, 1, "up to 1 job of this run may be in the queue, and workers go on with it; to cancel: "),
        (0, 3, 0, ""),
        (0, 0, 0, ""),
    ],
)
def test_jobs_that_stay_are_told_as_far_as_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], accepted: int, absent: int, unknown: int, message: str
) -> None:
    with Journal(tmp_path / "out.jsonl") as journal:
        own_ids = [journal.notes.own_id(f"{i:032}") for i in range(accepted + absent + unknown)]
        journal.notes.submits("default", own_ids)
        new = journal.notes.sent.sends(own_ids[: accepted + unknown])
        assert new == {*own_ids[: accepted + unknown]}
        for own_id in own_ids[:accepted]:
            journal.notes.sent.accepted(own_id)
        say_what_stays(Stack("redis://nowhere"), journal, None)
    said = capsys.readouterr().err
    assert said.startswith(f"millstream: {message}") if message else not said
