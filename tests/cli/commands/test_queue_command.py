"""`millstream queue` against a real server: for people, for programs, once and again and again."""

from __future__ import annotations

import json
import signal

import pytest
from support.commands import invoke, process
from support.servers.servers import Server
from support.workers.answering_worker import Responder, answering

from millstream import Client
from millstream.cli.display.times import age


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
