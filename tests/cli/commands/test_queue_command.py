"""`millstream queue` against a real server: for people, for programs, once and again and again."""

from __future__ import annotations

import json
import signal

import pytest
from support.commands import invoke, process
from support.servers.servers import Server
from support.workers.answering_worker import Responder, answering

from millstream import Client, LaneStatus, QueueStatus, WorkerStatus
from millstream.cli.commands import queue_command
from millstream.cli.display.times import age
from millstream.wire.keys import Lane

WORKER = WorkerStatus(
    name="gpu-node-17.cluster.local-1a2b3c4d\x1b",
    model="HuggingFaceTB/SmolLM2-135M-Instruct",
    state="draining",
    rows_running=12,
    rows_waiting=3,
    grammars_waiting=2,
    max_rows=64,
    kv_used=30_000,
    kv_cached=13_000,
    kv_free=22_000,
    prompt_tokens_per_s=1203.4,
    output_tokens_per_s=17_088.1,
    prefix_hit_rate=0.31,
    started_ms=1_795_375_129_141,
    device="cuda:0",
    weights="int8",
    kv_format="int8",
    model_digest="0123456789abcdef0123456789abcdef",
    self_check="attention off by at most 0.004",
    fallbacks="cuda graphs off since an illegal memory access",
    package="0.2.0",
    versions=(1, 2),
)
FULL = QueueStatus(
    queue="docs",
    at_ms=1_795_385_129_141,
    shards=4,
    model=WORKER.model,
    model_digest=WORKER.model_digest,
    models=(WORKER.model, "tiny"),
    lanes=(LaneStatus(Lane.INTERACTIVE, 0, 3, None), LaneStatus(Lane.BATCH, 12_431, 64, 252.3)),
    delayed=3,
    dead=2,
    held_bytes=34 * 2**20,
    fullest_bytes=20 * 2**20,
    max_bytes=2**30,
    workers=(WORKER,),
    tenants={"acme": 8000, "": 44},
    unread={},
)


@pytest.mark.parametrize("width", ["80", "120"])
def test_a_full_queue_on_one_page(
    width: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    queue_command._print(FULL, as_json=False)
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("queue docs · 4 shards · 2026-")
    assert lines[2:] == [
        "lane          waiting   running   oldest waiting",
        "interactive         0         3   –",
        "batch          12,431        64   4 min 12 s",
        "",
        "model           HuggingFaceTB/SmolLM2-135M-Instruct (0123456789ab)",
        "                its workers have 2: HuggingFaceTB/SmolLM2-135M-Instruct, tiny",
        "delayed retries 3",
        "dead letters    2",
        "requests held   34.0 MiB, 20.0 MiB in the fullest shard; a shard takes 1.0 GiB",
        "tenants waiting acme 8,000, (none) 44",
        "workers         1",
        "",
        "gpu-node-17.cluster.local-1a2b3c4d\\x1b: draining, up 2 h 46 min",
        "  HuggingFaceTB/SmolLM2-135M-Instruct in int8 on cuda:0",
        "  rows      12 of 64 running, 3 waiting, 2 jobs' formats being compiled",
        "  tokens/s  1,203.4 prompt, 17,088.1 output",
        "  KV cache  46% used, 20% cached of 65,000 tokens in int8, 31% prefix hits",
        "  version   millstream 0.2.0, messages 1 to 2",
        "  checked   attention off by at most 0.004",
        "  slower    cuda graphs off since an illegal memory access",
    ]


def test_what_is_there_is_shown_and_printed_for_programs(
    valkey: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLSTREAM_REDIS_URL", valkey.url)
    unused = invoke("queue", "--queue", "nobody")
    assert (unused.exit_code, "nobody has used this queue yet" in unused.stdout) == (0, True)
    with Client(valkey.url) as client:
        job = client.submit("hello")
    told = invoke("queue")
    assert told.exit_code == 0, told.output
    assert "workers         0: jobs wait until one serves the queue" in told.stdout
    status = json.loads(invoke("queue", "--json").stdout)
    assert [(lane["lane"], lane["waiting"]) for lane in status["lanes"]] == [("interactive", 0), ("batch", 1)]
    assert (status["workers"], status["unread"]) == ([], {})
    asked = invoke("result", job.id)
    assert (asked.exit_code, "no worker serves the queue 'default' now" in asked.stderr) == (5, True)
    assert "no worker serves the queue 'default' now" in invoke("status", job.id).stderr


def test_watching_ends_with_ctrl_c(valkey: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_REDIS_URL", valkey.url)
    with answering(valkey.url) as worker:
        assert isinstance(worker, Responder)
        invoke("submit", "hello", "--wait")
        with process("queue", "--watch", "--json", MILLSTREAM_REDIS_URL=valkey.url) as running:
            assert running.stdout is not None
            assert json.loads(running.stdout.readline())["queue"] == "default"
            running.send_signal(signal.SIGINT)
            assert running.wait(30) == 130


def test_ages_have_two_units() -> None:
    seconds = (-3, 59.9, 60, 3725, 90_000)
    assert [age(one) for one in seconds] == ["0 s", "59 s", "1 min 0 s", "1 h 2 min", "1 d 1 h"]
