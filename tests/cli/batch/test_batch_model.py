"""`millstream batch run` on a queue whose model is replaced: before it goes on, and midway."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import redis
from support.batch_files import BatchFiles
from support.commands import assert_refused, invoke, process
from support.workers.answering_worker import answering, completion
from support.workers.counting_worker import model_name, worker_thread

from millstream import Client, ModelIdentity
from millstream.wire.keys import QueueKeys

LINES = [completion(f"{i}", f"w{i}", max_tokens=3) for i in range(8)]


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


def test_a_finished_run_needs_no_server(batch: BatchFiles) -> None:
    batch.write(*LINES[:1])
    with answering(batch.server.url) as worker:
        worker.model = ModelIdentity("old", "0" * 32)
        assert invoke(*batch.command).exit_code == 0
    assert batch.noted_models() == ["old"]
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
