"""`millstream submit | stream | result | cancel | status` against a real server."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator

import pytest
from support.answering import Answering, answering
from support.commands import invoke, process
from support.servers import Server
from typer.testing import CliRunner

from millstream.cli.app import app


@pytest.fixture
def worker(valkey: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Answering]:
    monkeypatch.setenv("MILLSTREAM_REDIS_URL", valkey.url)
    with answering(valkey.url) as worker:
        yield worker


def test_submit_prints_an_id_by_which_the_result_is_found(worker: Answering) -> None:
    submitted = invoke("submit", "hello", "--max-tokens", 5, "--stop", "x", "--param", "top_p=0.5")
    assert submitted.exit_code == 0, submitted.output
    job_id = submitted.stdout.strip()
    waited = invoke("result", job_id, "--wait")
    assert (waited.exit_code, waited.stdout) == (0, "HELLO\n")
    request = worker.requests[job_id]
    assert request.sampling.model_dump(exclude_unset=True) == {"max_tokens": 5, "stop": ("x",), "top_p": 0.5}
    assert json.loads(invoke("status", job_id, "--json").stdout)["state"] == "completed"
    assert "state            completed" in invoke("status", job_id).stdout
    result = json.loads(invoke("result", job_id, "--json").stdout)
    assert (result["id"], result["choices"][0]["text"]) == (job_id, "HELLO")


@pytest.mark.usefixtures("worker")
def test_streaming() -> None:
    streamed = invoke("submit", "hello", "--stream")
    assert (streamed.exit_code, streamed.stdout) == (0, "HELLO\n")
    job_id = streamed.stderr.split()[-1]
    events = [json.loads(line) for line in invoke("stream", job_id, "--json").stdout.splitlines()]
    assert [event["event"] for event in events] == ["tokens", "end"]
    rest = invoke("stream", job_id, "--cursor", events[0]["cursor"])
    assert (rest.exit_code, rest.stdout) == (0, "\n")


def test_chat_from_standard_input(worker: Answering) -> None:
    done = invoke("submit", "-", "--chat", "--system", "be brief", "--wait", text="hello\n")
    assert done.exit_code == 0
    [request] = worker.requests.values()
    assert request.messages is not None
    assert [(m.role, m.content) for m in request.messages] == [("system", "be brief"), ("user", "hello\n")]


def test_every_end_has_its_exit_code(worker: Answering) -> None:
    assert invoke("submit", "please fail", "--wait").exit_code == 1
    assert invoke("submit", "please fail", "--stream").exit_code == 1
    assert invoke("submit", "x", "--param", "temperature=99").exit_code == 2
    assert invoke("submit", "x", "--param", "heat=9").exit_code == 2
    assert invoke("submit", "x", "--system", "y").exit_code == 2
    assert invoke("status", "no-dash").exit_code == 2
    for command in ("status", "result", "cancel", "stream"):
        assert invoke(command, "0-nobody").exit_code == 4
    worker.gate.clear()
    invoke("submit", "held up", "--id", "first")
    job_id = invoke("submit", "hello", "--id", "mine").stdout.strip()
    assert job_id == "0-mine"
    assert invoke("submit", "hello", "--id", "mine").stdout.strip() == job_id
    assert invoke("submit", "other", "--id", "mine").exit_code == 8
    assert invoke("result", job_id).exit_code == 5
    assert invoke("result", job_id, "--wait", "--timeout-s", "0.05").exit_code == 5
    cancelled = invoke("cancel", job_id)
    assert (cancelled.exit_code, cancelled.stdout) == (0, "0-mine: cancelled\n")
    assert invoke("cancel", job_id, "--json").stdout == '{"id":"0-mine","outcome":"cancelled"}\n'
    assert invoke("result", job_id).exit_code == 6
    late = invoke("submit", "late", "--deadline-s", "0.001").stdout.strip()
    assert invoke("result", late, "--wait").exit_code == 7


@pytest.mark.usefixtures("worker")
def test_errors_are_objects_for_programs() -> None:
    done = invoke("result", "0-nobody", "--json")
    assert json.loads(done.stdout)["error"] == {
        "type": "NotFound",
        "message": "0-nobody: no such job: never submitted to this queue, or its result has expired",
        "exit_code": 4,
    }


def test_ctrl_c_leaves_the_job_running_and_says_how_to_go_on(valkey: Server, worker: Answering) -> None:
    worker.gate.clear()
    with process("submit", "hello", "--stream", "--id", "mine", MILLSTREAM_REDIS_URL=valkey.url) as running:
        assert running.stderr is not None
        assert "job 0-mine" in running.stderr.readline()
        running.send_signal(signal.SIGINT)
        _, messages = running.communicate(timeout=30)
    assert running.returncode == 130
    assert "the job goes on: millstream stream 0-mine" in messages
    worker.gate.set()
    assert invoke("stream", "0-mine").stdout == "HELLO\n"


def test_what_is_wrong_on_the_command_line_is_named(worker: Answering) -> None:
    unknown = invoke("submit", "x", "--param", "wait_s=abc")
    assert unknown.exit_code == 2
    assert "--param: no such sampling parameter; there are max_tokens" in unknown.stderr
    latin = CliRunner().invoke(app, ["submit", "-"], input=b"caf\xe9")
    assert latin.exit_code == 2
    assert "standard input is not UTF-8" in latin.stderr
    assert not worker.requests
