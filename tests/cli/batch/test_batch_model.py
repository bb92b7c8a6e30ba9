"""`millstream batch run` on a queue whose model is replaced: before it goes on, and midway."""

from __future__ import annotations

import asyncio
import subprocess
import time
from pathlib import Path

import pytest
import redis
from support.batch_files import BatchFiles
from support.commands import assert_refused, invoke, process
from support.workers.answering_worker import answering, completion
from support.workers.counting_worker import model_name, worker_thread
from support.workers.hand_worker import replace_model

from millstream import Client, ModelIdentity
from millstream.wire.keys import QueueKeys

LINES = [completion(f"{i}", f"w{i}", max_tokens=3) for i in range(8)]


@pytest.mark.slow
def test_a_run_goes_on_with_another_model_only_when_asked(batch: BatchFiles, tokenizer: Path) -> None:
    batch.write(*LINES[:4])
    with worker_thread(batch.server, model_name(tokenizer)):
        assert invoke(*batch.command).exit_code == 0
        assert invoke(*batch.command).exit_code == 0
    assert batch.noted_models() == ["counting"]

    batch.write(*LINES)
    with worker_thread(batch.server, model_name(tokenizer, name="other"), replace_model=True):
        until_has(batch, "other")
        kept = [batch.out, batch.errors, batch.run_file]
        before = [path.read_bytes() for path in kept], batch.states()
        stopped = invoke(*batch.command)
        assert stopped.exit_code == 2
        now, was = "queue 'default' now has other (", " had counting ("
        for said in (now, was, "4 lines were answered so", "--redo-changed", "--keep-answers"):
            assert said in stopped.stderr
        assert ([path.read_bytes() for path in kept], batch.states()) == before
        assert invoke(*batch.command, "--keep-answers").exit_code == 0
    assert batch.models() == {f"{i}": "counting" if i < 4 else "other" for i in range(8)}
    assert batch.noted_models() == ["counting", "other"]

    with worker_thread(batch.server, model_name(tokenizer, name="third"), replace_model=True):
        until_has(batch, "third")
        assert_refused("8 lines were answered so", *batch.command)
        done = invoke(*batch.command, "--redo-changed")
        assert done.exit_code == 0, done.output
        assert invoke(*batch.command).exit_code == 0
    assert set(batch.models().values()) == {"third"}
    assert len(batch.answers()) == 8


def test_a_run_whose_model_is_replaced_midway_stops(batch: BatchFiles, tokenizer: Path, gate: Path) -> None:
    """Before it submits more; the jobs under way have ended."""
    batch.write(*LINES)
    held = gate / "1"
    held.touch()
    with (
        worker_thread(batch.server, model_name(tokenizer, gate=gate)),
        process(*batch.command, "--window", 2) as running,
    ):
        while list(batch.states().values()) != ["running"] * 2:
            assert running.poll() is None
        with worker_thread(batch.server, model_name(tokenizer, name="other"), replace_model=True):
            until_has(batch, "other")
            held.unlink()
            assert "jobs of this run" not in assert_stopped(running, "queue 'default' now has other (")
            assert list(batch.states().values()) == ["completed"] * 2
            assert batch.models() == {"0": "counting", "1": "counting"}
            assert_refused("2 lines were answered so", *batch.command)
            assert invoke(*batch.command, "--redo-changed").exit_code == 0
    assert batch.models() == {f"{i}": "other" for i in range(8)}


def test_an_answer_of_another_model_stops_the_run(batch: BatchFiles, tokenizer: Path) -> None:
    """Where all jobs were submitted before; with those that it leaves it goes on."""
    batch.write(*LINES)
    asyncio.run(replace_model(batch.server.url, ModelIdentity("counting", "0" * 32)))
    with process(*batch.command) as running:
        while len(batch.states()) < len(LINES):
            assert running.poll() is None
        with worker_thread(batch.server, model_name(tokenizer, name="other"), replace_model=True):
            assert_stopped(running, "an answer of queue 'default' is by other (")
            assert batch.models() == {}
            assert_refused("8 lines were answered or submitted so", *batch.command)
            submitted = set(batch.states())
            assert invoke(*batch.command, "--keep-answers", "--keep-results").exit_code == 0
            assert set(batch.states()) == submitted
    assert batch.models() == {f"{i}": "other" for i in range(8)}
    assert batch.noted_models() == ["counting", "other"]


def test_workers_that_report_no_digest_are_not_compared(batch: BatchFiles, tokenizer: Path) -> None:
    batch.write(*LINES[:4])
    with answering(batch.server.url):
        assert invoke(*batch.command).exit_code == 0
    assert batch.noted_models() == []
    batch.write(*LINES)
    with worker_thread(batch.server, model_name(tokenizer)):
        assert invoke(*batch.command).exit_code == 0
    assert batch.noted_models() == ["counting"]
    assert len(batch.answers()) == 8


def test_a_finished_run_needs_no_server(batch: BatchFiles, tokenizer: Path) -> None:
    batch.write(*LINES[:1])
    with worker_thread(batch.server, model_name(tokenizer)):
        assert invoke(*batch.command).exit_code == 0
    done = invoke(*batch.command[:-1], "redis://127.0.0.1:1")
    assert (done.exit_code, "1 answered before" in done.stdout) == (0, True)


def until_has(batch: BatchFiles, model: str) -> None:
    """Until the queue has this model, and its shard takes no job of another one."""
    limit_s, served = time.monotonic() + 30, QueueKeys("default").shard(0).model
    with Client(batch.server.url) as client, redis.Redis(port=batch.server.port) as direct:
        while (now := client.queue_model()).name != model or (
            direct.hget(served, "digest") != now.digest.encode()
        ):
            assert time.monotonic() < limit_s


def assert_stopped(running: subprocess.Popen[str], met: str) -> str:
    _, messages = running.communicate(timeout=60)
    assert running.returncode == 2, messages
    for said in (met, "answered by counting (", "--redo-changed", "--keep-answers"):
        assert said in messages
    return messages
