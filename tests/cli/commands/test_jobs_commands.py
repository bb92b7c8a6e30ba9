"""`millstream submit | stream | result | cancel | status` against a real server."""

from __future__ import annotations

import contextlib
import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from support.commands import assert_refused, invoke, process
from support.servers.servers import Server, lasting_server
from support.wire.image_files import png
from support.workers.answering_worker import CUT, UNFIT, Responder, answering
from support.workers.hand_worker import UNFIT_CALL, register
from typer.testing import CliRunner

from millstream import AsyncClient, ClientOptions, ResponseFormat
from millstream.cli.app import app
from millstream.cli.embedded.stack import Stack
from millstream.wire.keys import QueueKeys


@pytest.fixture
def worker(valkey: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Responder]:
    monkeypatch.setenv("MILLSTREAM_REDIS_URL", valkey.url)
    with answering(valkey.url) as worker:
        yield worker


def test_submit_prints_an_id_by_which_the_result_is_found(worker: Responder) -> None:
    submitted = invoke("submit", "hello", "--max-tokens", 5, "--stop", "x", "--param", "top_p=0.5")
    assert submitted.exit_code == 0, submitted.output
    job_id = submitted.stdout.strip()
    waited = invoke("result", job_id, "--wait")
    assert (waited.exit_code, waited.stdout) == (0, "HELLO\n")
    request = worker.requests[job_id]
    assert request.sampling.model_dump(exclude_unset=True) == {"max_tokens": 5, "stop": ("x",), "top_p": 0.5}
    assert json.loads(invoke("status", job_id, "--json").stdout)["state"] == "completed"
    told = invoke("status", job_id).stdout
    assert "state            completed\n" in told
    assert re.search(r"^submitted +\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  \(\d+ s ago\)$", told, re.MULTILINE)
    assert "cancel" not in told
    assert "_ms" not in told
    result = json.loads(invoke("result", job_id, "--json").stdout)
    assert (result["id"], result["choices"][0]["text"]) == (job_id, "HELLO")


def test_a_wait_that_begins_in_a_restart_goes_on_with_the_server() -> None:
    with lasting_server() as server:
        with answering(server.url):
            job_id = invoke("submit", "hello", "--wait", "--redis-url", server.url).stderr.split()[2]
        server.kill()
        with process("result", job_id, "--wait", "--redis-url", server.url) as waiting:
            assert waiting.stderr is not None
            assert "trying again for 60 s" in waiting.stderr.readline()
            server.start()
            out, _ = waiting.communicate(timeout=30)
        assert (waiting.returncode, out) == (0, "HELLO\n")


@pytest.mark.usefixtures("worker")
def test_streaming() -> None:
    streamed = invoke("submit", "hello", "--stream")
    assert (streamed.exit_code, streamed.stdout) == (0, "HELLO\n")
    job_id = streamed.stderr.split()[2]
    events = [json.loads(line) for line in invoke("stream", job_id, "--json").stdout.splitlines()]
    assert [event["event"] for event in events] == ["tokens", "end"]
    rest = invoke("stream", job_id, "--cursor", events[0]["cursor"])
    assert (rest.exit_code, rest.stdout) == (0, "\n")


@pytest.mark.usefixtures("worker")
def test_what_a_stranger_wrote_does_not_command_the_terminal(valkey: Server) -> None:
    job_id = invoke("submit", "hello").stdout.strip()
    with contextlib.closing(redis.Redis(port=valkey.port)) as direct:
        direct.hset(QueueKeys("default").shard(0).job(job_id), "requeued_from", "\x1b]0;owned\x07")
    told = invoke("status", job_id).stdout
    assert "\x1b" not in told
    assert "\\x1b]0;owned\\x07" in told


def test_a_text_is_one_users_message(worker: Responder) -> None:
    thinking = ("--chat-template-kwargs", '{"enable_thinking": false}')
    done = invoke("submit", "-", "--system", "be brief", *thinking, "--wait", text="hello\n")
    assert (done.exit_code, done.stdout) == (0, "HELLO\n\n"), done.stderr
    [request] = worker.requests.values()
    assert request.messages is not None
    assert [(m.role, m.content) for m in request.messages] == [("system", "be brief"), ("user", "hello\n")]
    assert (request.chat_template_kwargs, request.version) == ({"enable_thinking": False}, 2)


def test_images_come_before_the_text(worker: Responder, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png(1))
    (tmp_path / "b.png").write_bytes(png(2))
    shown = ("--image", tmp_path / "a.png", "--image", tmp_path / "b.png")
    done = invoke("submit", "hello", *shown, "--system", "be brief", "--wait")
    assert done.exit_code == 0, done.stderr
    [request] = worker.requests.values()
    assert request.messages is not None
    assert [image.data for image in request.images] == [png(1), png(2)]
    parts = [part.text if part.image is None else part.image for part in request.messages[1].parts]
    assert (request.messages[0].content, parts) == ("be brief", [0, 1, "hello"])


SCHEMA = '{\n  "type": "object", "properties": {"b": {}, "a": {}}\n}\n'


@pytest.mark.parametrize(
    ("options", "made"),
    [
        (("--schema", "SCHEMA"), ResponseFormat(type="json_schema", text=SCHEMA)),
        (("--choice", "yes", "--choice", "no"), ResponseFormat(type="choice", text='["yes","no"]')),
        (("--regex", "[0-9]+"), ResponseFormat(type="regex", text="[0-9]+")),
    ],
)
def test_the_format_of_an_answer(
    worker: Responder, tmp_path: Path, options: tuple[str, ...], made: ResponseFormat
) -> None:
    path = tmp_path / "schema.json"
    path.write_text(SCHEMA)
    given = [str(path) if option == "SCHEMA" else option for option in options]
    done = invoke("submit", "hello", *given, "--wait")
    assert (done.exit_code, done.stdout) == (0, "HELLO\n"), done.stderr
    assert "cut" not in done.stderr
    [request] = worker.requests.values()
    assert (request.response_format, request.version) == (made, 3)


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize("how", ["--wait", "--stream"])
def test_an_answer_that_was_cut_gets_a_word(how: str) -> None:
    done = invoke("submit", f"hello{CUT}", "--regex", "x", how)
    assert (done.exit_code, done.stdout) == (0, f"HELLO{CUT}\n")
    assert "the answer was cut before it was whole" in done.stderr


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize("how", ["--wait", "--stream"])
def test_an_answer_with_calls_that_do_not_fit_says_why(how: str) -> None:
    done = invoke("submit", f"hello{UNFIT}", how)
    assert (done.exit_code, done.stdout) == (0, f"HELLO{UNFIT}\n")
    assert UNFIT_CALL["schema_error"] in done.stderr
    assert "cut" not in done.stderr


def test_a_raw_text_is_continued(worker: Responder) -> None:
    assert invoke("submit", "hello", "--raw", "--wait").stdout == "HELLO\n"
    [request] = worker.requests.values()
    assert (request.prompt, request.messages, request.version) == ("hello", None, 1)


@pytest.mark.parametrize("answer", ["", "Hi"])
def test_an_empty_answer_gets_a_word(valkey: Server, monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    monkeypatch.setenv("MILLSTREAM_REDIS_URL", valkey.url)
    with answering(valkey.url, answer=lambda _: answer):
        for follow in ("--wait", "--stream"):
            done = invoke("submit", "hello", follow)
            assert (done.exit_code, done.stdout) == (0, f"{answer}\n")
            assert ("the model ended at once with no text" in done.stderr) is (not answer)


def test_every_end_has_its_exit_code(worker: Responder) -> None:
    assert invoke("submit", "please fail", "--wait").exit_code == 1
    assert invoke("submit", "please fail", "--stream").exit_code == 1
    for command in ("status", "result", "cancel", "stream"):
        for name in ("0-nobody", "nobody", "no id"):
            assert invoke(command, name).exit_code == 4
    worker.gate.clear()
    invoke("submit", "held up", "--id", "first")
    job_id = invoke("submit", "hello", "--id", "mine").stdout.strip()
    assert job_id == "0-mine"
    assert invoke("submit", "hello", "--id", "mine").stdout.strip() == job_id
    assert invoke("submit", "other", "--id", "mine").exit_code == 8
    assert invoke("result", job_id).exit_code == 5
    assert invoke("result", job_id, "--wait", "--timeout-s", "0.05").exit_code == 5
    assert invoke("result", "mine").exit_code == 5
    cancelled = invoke("cancel", "mine")
    assert (cancelled.exit_code, cancelled.stdout) == (0, "mine: cancelled\n")
    assert invoke("cancel", "mine", "--json").stdout == '{"id":"0-mine","outcome":"cancelled"}\n'
    assert invoke("result", job_id).exit_code == 6
    late = invoke("submit", "late", "--deadline-s", "0.001").stdout.strip()
    assert invoke("result", late, "--wait").exit_code == 7


def test_many_jobs_are_cancelled_and_an_unknown_one_told(worker: Responder) -> None:
    worker.gate.clear()
    invoke("submit", "held up", "--id", "first")
    for name in ("one", "two"):
        invoke("submit", "hello", "--id", name)
    done = invoke("cancel", "one", "nobody", "two", "nothing")
    assert (done.exit_code, done.stdout) == (4, "one: cancelled\ntwo: cancelled\n")
    assert [name in done.stderr for name in ("nobody: no such job", "nothing: no such job")] == [True, True]
    again = invoke("cancel", "one", "nobody", "--json")
    ended, unknown = map(json.loads, again.stdout.splitlines())
    assert ended == {"id": "0-one", "outcome": "cancelled"}
    assert (again.exit_code, unknown["error"]["exit_code"]) == (4, 4)


@pytest.mark.usefixtures("worker")
def test_errors_are_objects_for_programs() -> None:
    done = invoke("result", "0-nobody", "--json")
    assert json.loads(done.stdout)["error"] == {
        "type": "NotFound",
        "message": "0-nobody: no such job: never submitted to this queue, or its result has expired",
        "exit_code": 4,
    }


def test_ctrl_c_leaves_the_job_running_and_says_how_to_go_on(valkey: Server, worker: Responder) -> None:
    worker.gate.clear()
    with process("submit", "hello", "--stream", "--id", "mine", MILLSTREAM_REDIS_URL=valkey.url) as running:
        assert running.stderr is not None
        assert "job 0-mine" in running.stderr.readline()
        running.send_signal(signal.SIGINT)
        _, messages = running.communicate(timeout=30)
    assert running.returncode == 130
    assert "the job goes on: millstream stream 0-mine" in messages
    worker.gate.set()
    assert invoke("stream", "mine").stdout == invoke("result", "mine", "--wait").stdout == "HELLO\n"


KWARGS = "--chat-template-kwargs"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--schema", "nowhere.json"), "--schema: cannot be read: "),
        (("--schema", __file__), "--schema: is no JSON"),
        (("--choice", "a", "--choice", "a"), "--choice: has 'a' more than once"),
        (("--regex", "a", "--choice", "a"), "--choice: is given beside --regex"),
        (("--regex", ""), "--regex: is empty"),
        (("--regex", "a", "--param", "min_tokens=3"), "response_format: cannot be met with min_tokens 3"),
        (("--param", "temperature=99"), "temperature"),
        (("--param", "wait_s=abc"), "--param: no such sampling parameter; there are max_tokens"),
        (("--raw", "--system", "y"), "--system"),
        (("--raw", "--image", "page.png"), "--image: applies to the chat template; leave it out with --raw"),
        (("--image", "nowhere.png"), "cannot be read (No such file or directory); give an image file"),
        (("--image", __file__), "is no whole PNG, JPEG, WebP, GIF, BMP or TIFF image"),
        ((KWARGS, "{"), "is not JSON"),
        ((KWARGS, "[1]"), "must be a map"),
        ((KWARGS, '{"tools": []}'), "cannot be set by a request"),
        (("--durability", "disk"), "'disk' is not one of 'none'"),
        (("--durability", "aof"), "the server keeps no append-only file"),
        (("--durability-timeout-s", 0), "durability_timeout_s"),
    ],
)
def test_what_is_wrong_on_the_command_line_is_named(
    worker: Responder, options: tuple[object, ...], says: str
) -> None:
    assert_refused(says, "submit", "hello", *options)
    assert not worker.requests


def test_a_text_and_a_time_that_are_none_are_named(worker: Responder) -> None:
    for nothing in (("",), ("-",), ("", "--raw")):
        assert_refused("TEXT: is empty", "submit", *nothing, text="")
    latin = CliRunner().invoke(app, ["submit", "-"], input=b"caf\xe9")
    assert (latin.exit_code, "standard input is not UTF-8" in latin.stderr) == (2, True)
    seconds = "--timeout-s: must be a number of seconds, 0 or more"
    assert_refused(seconds, "result", "0-a", "--wait", "--timeout-s", "nan")
    assert not worker.requests


@pytest.mark.usefixtures("worker")
def test_durability_is_reported() -> None:
    short = ("submit", "x", "--durability", "replicas", "--durability-timeout-s", 0.1)
    done = invoke(*short, "--id", "mine")
    assert done.exit_code == 0
    assert done.stdout == "0-mine\n"  # it is queued: to submit it anew would be two jobs
    assert "0-mine: queued, but durability replicas was not reached in time (0 replicas" in done.stderr
    told = json.loads(invoke(*short, "--json").stdout)
    assert (told["created"], told["durability"], told["replicas"]) == (True, "none", 0)


def test_whoever_waits_for_a_queue_that_nobody_serves_is_told(valkey: Server, worker: Responder) -> None:
    told = "no worker serves the queue 'default' now; the job waits until one does"
    job_id = invoke("submit", "x").stdout.strip()
    for command in (("submit", "x", "--wait"), ("submit", "x", "--stream")):
        assert (
            told in invoke(*command).stderr
        )  # the test's worker says nothing of itself, as a real one would
    for command in (("stream", job_id), ("result", job_id, "--wait"), ("submit", "x")):
        assert told not in invoke(*command).stderr  # it has ended, or nobody waits
    shard = QueueKeys("default").shard(0)
    register(valkey.port, shard)
    assert told not in invoke("submit", "x", "--wait").stderr
    with redis.Redis(port=valkey.port) as direct:
        direct.rename(shard.worker("w"), shard.loading("w"))
    soon = "'default' now, but 1 worker loads its model; the job waits until one does"
    assert soon in invoke("submit", "x", "--wait").stderr


def test_a_damaged_heartbeat_keeps_nobody_from_the_answer(valkey: Server, worker: Responder) -> None:
    job_id = invoke("submit", "x").stdout.strip()
    register(valkey.port, QueueKeys("default").shard(0), max_rows="many")
    for command in (("submit", "x", "--wait"), ("submit", "x", "--stream"), ("result", job_id, "--wait")):
        done = invoke(*command)
        assert (done.exit_code, done.stdout) == (0, "X\n"), done.output


@pytest.mark.usefixtures("worker")
def test_an_output_that_nobody_reads_ends_the_command_silently(valkey: Server) -> None:
    job_id = invoke("submit", "x").stdout.strip()
    for command in (("status", job_id, "--json"), ("stream", job_id)):
        with process(*command, MILLSTREAM_REDIS_URL=valkey.url) as running:
            assert running.stdout is not None
            assert running.stderr is not None
            running.stdout.close()
            assert (running.stderr.read(), running.wait(30)) == ("", 1)


async def test_each_shard_is_looked_at(valkey: Server) -> None:
    stack = Stack(valkey.url)
    async with AsyncClient(valkey.url, queue="wide", options=ClientOptions(shards=3)) as client:
        await client.submit("x")
    assert await stack.unserved("wide") == [0, 1, 2]
    register(valkey.port, QueueKeys("wide").shard(1))
    assert await stack.unserved("wide") == [0, 2]
    assert not await stack.has_worker("wide")
