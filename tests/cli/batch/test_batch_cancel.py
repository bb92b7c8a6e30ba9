"""A batch run that is taken back: by command after its death, and by Ctrl-C."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

from support.batch_files import BatchFiles, answers_of, documents
from support.commands import assert_refused, invoke, on_terminal, process
from support.workers.answering_worker import Responder, answering, completion, read_rows

from millstream import Client
from millstream.batch.files.journal import Journal
from millstream.cli.batch.batch_cancel import _command

LINES = documents(120)


def kill_when_submitted(batch: BatchFiles, worker: Responder) -> None:
    """Of a run of 20 lines none is answered."""
    batch.write(*LINES[:20])
    worker.gate.clear()
    with process(*batch.command) as running:
        while len(batch.states()) < 20:
            assert running.poll() is None
        running.kill()


def test_a_cancelled_run_computes_nothing_more(batch: BatchFiles) -> None:
    batch.write(*LINES)
    command = (*batch.command, "--window", 60)
    with answering(batch.server.url) as worker:
        worker.after = 30
        with process(*command) as running:
            assert worker.full_stop.wait(30)
            while batch.out.read_bytes().count(b"\n") < 30:
                assert running.poll() is None
            while sum(state in ("queued", "running") for state in batch.states().values()) < 60:
                assert running.poll() is None
            assert_refused("another run is writing this file", *batch.cancel)
            running.send_signal(signal.SIGINT)
            _, messages = running.communicate(timeout=30)
        assert "60 jobs of this run stay in the queue, and workers go on with them; to cancel: " in messages
        assert f"millstream batch cancel {batch.out} --redis-url …" in messages
        assert "within" not in messages  # nobody is there to press it again
        done = invoke(*batch.cancel)
        assert (done.exit_code, done.stdout.split()[1]) == (0, "cancelled,")
        counts = [int(word) for word in done.stdout.split() if word.isdigit()]
        assert sum(counts) == 60
        assert counts[0] >= 50
        worker.gate.set()
        while "running" in batch.states().values():
            time.sleep(0.01)
        computed = len(worker.answered)
        assert computed <= 30 + counts[2]
        assert invoke(*command, "--strict").exit_code == 0
    assert len(read_rows(batch.out)) == len(LINES)


def test_jobs_that_the_server_does_not_know(batch: BatchFiles) -> None:
    out = batch.folder / "an out.jsonl"
    with Journal(out) as journal:
        journal.notes.submits("default", [journal.notes.own_id("d" * 32)])
        hint = _command(journal, batch.server.url)
    command = ("batch", "cancel", out, "--redis-url", batch.server.url)
    counts = json.loads(invoke(*command, "--json").stdout)
    assert counts == {"cancelled": 0, "running": 0, "ended": 0, "unknown": 1}
    done = invoke(*command)
    assert done.exit_code == 4
    assert "0 had ended before" in done.stdout
    assert "1 job is not known to this server" in done.stderr
    assert hint == f"millstream batch cancel '{out}' --redis-url …"


def test_jobs_that_were_cancelled_one_by_one_run_again(batch: BatchFiles) -> None:
    """As they are where `batch cancel` itself was killed: no note says that they are cancelled."""
    with answering(batch.server.url) as worker:
        kill_when_submitted(batch, worker)
        with Client(batch.server.url) as client:
            for job_id, state in batch.states().items():
                if state == "queued":
                    client.cancel(job_id)
        worker.gate.set()
        assert invoke(*batch.command, "--strict").exit_code == 0
    assert len(read_rows(batch.out)) == 20


def test_cancelling_at_the_first_interrupt(batch: BatchFiles) -> None:
    batch.write(*LINES)
    with answering(batch.server.url) as worker:
        worker.gate.clear()
        with process(*batch.command, "--cancel-on-interrupt") as running:
            while len(batch.states()) < len(LINES):
                assert running.poll() is None
            running.send_signal(signal.SIGTERM)
            _, messages = running.communicate(timeout=30)
        assert running.returncode == 130
        assert " cancelled, 0 had ended before, " in messages
        assert "queued" not in batch.states().values()


def test_a_second_ctrl_c_cancels(batch: BatchFiles) -> None:
    batch.write(*LINES)
    with answering(batch.server.url) as worker:
        worker.gate.clear()
        with on_terminal(*batch.command, columns=200) as terminal:
            while len(batch.states()) < len(LINES):
                assert terminal.running.poll() is None
            terminal.press_ctrl_c()
            terminal.read_until(b"Ctrl-C again")
            assert "queued" in batch.states().values()
            terminal.press_ctrl_c()
            terminal.read_until(b"had ended before")
            assert terminal.running.wait(30) == 130
        assert "queued" not in batch.states().values()


def test_jobs_of_lines_that_are_gone_are_cancelled(batch: BatchFiles) -> None:
    with answering(batch.server.url) as worker:
        kill_when_submitted(batch, worker)
        batch.write(completion("doc-0", "edited"), *LINES[1:15], completion("doc-15", "edited"))
        with process(*batch.command) as running:
            while sum(state == "cancelled" for state in batch.states().values()) < 5:
                assert running.poll() is None
            worker.gate.set()  # not before: it would answer them
            _, messages = running.communicate(timeout=30)
    assert running.returncode == 0, messages
    assert "jobs of an earlier run that no line of IN asks for now were cancelled" in messages
    assert batch.answers() == answers_of(15) | {"doc-0": "EDITED", "doc-15": "EDITED"}


def test_what_is_no_run_cannot_be_cancelled(tmp_path: Path) -> None:
    cancel = ("batch", "cancel", tmp_path / "typo.jsonl", "--redis-url", "redis://127.0.0.1:1")
    assert_refused("there is no typo.run.jsonl beside it", *cancel)
    assert list(tmp_path.iterdir()) == []
