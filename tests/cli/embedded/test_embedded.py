"""The embedded server and its worker: started, shared, left behind, and found dead."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from support.commands import assert_refused, invoke, process
from support.workers.answering_worker import completion, read_rows, write_lines
from support.workers.counting_worker import counted, model_name, write_tokenizer
from support.workers.fake_engine import COMMAND

from millstream.cli.embedded.embedded_server import EmbeddedServer, ServerFailed, ServerInUse, running_url
from millstream.cli.embedded.local_worker import LocalWorker, WorkerEnded
from millstream.cli.embedded.server_record import Instance
from millstream.cli.embedded.stack import Stack

pytestmark = pytest.mark.slow


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def ping(url: str) -> bool:
    with redis.Redis.from_url(url) as client:
        return bool(client.ping())


def test_data_outlasts_the_server(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path) as server, redis.Redis.from_url(server.url) as client:
        client.set("job", "kept")
        note = Instance.read(tmp_path)
        assert note is not None
        assert running_url(tmp_path) == server.url
    assert not alive(note.server)
    assert running_url(tmp_path) is None
    with EmbeddedServer(tmp_path) as server, redis.Redis.from_url(server.url) as client:
        assert client.get("job") == b"kept"


def test_one_command_at_a_time_owns_it(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path), pytest.raises(ServerInUse, match=f"process {os.getpid()}"):
        EmbeddedServer(tmp_path).__enter__()
    with EmbeddedServer(tmp_path) as server:
        assert ping(server.url)


def test_a_long_path_and_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path / ("x" * 120)) as server:
        assert ping(server.url)
        socket = Path(server.url.removeprefix("unix://"))
    assert not socket.parent.exists()  # outside of the folder, and nothing is left behind
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(ServerFailed, match=r"cannot be used \(.*\); set MILLSTREAM_HOME"):
        EmbeddedServer(blocked).__enter__()
    (tmp_path / "strange" / "lock").mkdir(parents=True)
    with pytest.raises(ServerFailed, match=r"lock cannot be used \(Is a directory\)"):
        EmbeddedServer(tmp_path / "strange").__enter__()


OWNER = """
import subprocess, sys, time
from pathlib import Path
from millstream.cli.embedded.embedded_server import EmbeddedServer
server = EmbeddedServer(Path(sys.argv[1])).__enter__()
sleeping = [sys.executable, "-c", "import time; time.sleep(600)", server.url]
worker = subprocess.Popen(sleeping, stdout=subprocess.DEVNULL, start_new_session=True)
server.note_worker(worker.pid)
print("ready", flush=True)
time.sleep(600)
"""


def test_what_a_killed_command_left_running_is_ended(tmp_path: Path) -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    with owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "ready\n"
        left = Instance.read(tmp_path)
        owner.kill()
    assert left is not None
    assert left.worker is not None
    assert alive(left.server)
    assert alive(left.worker)
    with EmbeddedServer(tmp_path) as server:
        assert not alive(left.server)
        assert not alive(left.worker)
        assert ping(server.url)


INTERRUPTED = """
import os, subprocess, sys, time
from millstream.cli.embedded import local_worker, stack
begin = subprocess.Popen.__init__
def interrupted(self, command, **how):  # by Ctrl-C, before anybody knows the process
    begin(self, command, **how)
    print(self.pid, flush=True)
    os.kill(os.getpid(), 2)
    time.sleep(0.1)
subprocess.Popen.__init__ = interrupted
class Sleeper(local_worker.LocalWorker):
    def __init__(self, *given):
        super().__init__(*given, (sys.executable, "-c", "import time; time.sleep(600)"))
stack.LocalWorker = Sleeper
times = int(sys.argv[1])
if times == 2:  # the server begins undisturbed
    subprocess.Popen.__init__, of_worker = begin, subprocess.Popen.__init__
    start = stack.EmbeddedServer._start
    def started(*given):
        start(*given)
        subprocess.Popen.__init__ = of_worker
    stack.EmbeddedServer._start = started
with stack.open_stack(None, stack.LocalModel("m", "m")):
    time.sleep(600)
"""


@pytest.mark.parametrize("process", [1, 2])
def test_a_process_that_begins_at_an_interrupt_is_ended(tmp_path: Path, process: int) -> None:
    """The server, and the worker."""
    run = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, str(process)], capture_output=True, text=True, timeout=60,
        env={**os.environ, "MILLSTREAM_HOME": str(tmp_path)},
    )  # fmt: skip
    assert "KeyboardInterrupt" in run.stderr
    [begun] = run.stdout.split()
    assert not alive(int(begun))


def test_a_process_that_only_has_the_old_pid_is_left_alone(tmp_path: Path) -> None:
    tmp_path.joinpath("instance.json").write_text(
        json.dumps(
            {"socket": str(tmp_path / "gone.sock"), "owner": 1, "server": os.getpid(), "worker": os.getpid()}
        )
    )
    with EmbeddedServer(tmp_path) as server:
        assert ping(server.url)


def test_a_worker_that_ends_is_told_with_its_log(tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    code = "import sys; print('the model is broken'); sys.exit(4)"
    with LocalWorker("unix:///x", "default", "m", log, (sys.executable, "-c", code)) as worker:
        os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(WorkerEnded, match=r"ended with code 4: \n?(?s:.*)the model is broken"):
            worker.check()


async def test_a_server_that_ends_while_a_model_loads_is_told_as_such(tmp_path: Path) -> None:
    looks = iter(range(2))

    def check() -> None:
        if next(looks, None) is None:
            raise ServerFailed("the embedded server ended")

    stack = Stack(f"unix://{tmp_path}/gone", "default", (check,))
    with pytest.raises(ServerFailed):
        await stack.guard(stack.worker_ready())


@pytest.fixture
def counting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A model that counts; the commands of the test have a folder of their own."""
    monkeypatch.delenv("MILLSTREAM_REDIS_URL", raising=False)
    monkeypatch.setenv("MILLSTREAM_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MILLSTREAM_ENGINE_COMMAND", COMMAND)
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    return model_name(write_tokenizer(folder, chat=True))


def test_jobs_and_batches_without_any_server(counting: str, tmp_path: Path) -> None:
    job_id = invoke("submit", "w7", "--max-tokens", 3).stdout.strip()
    assert invoke("status", job_id, "--json").stdout.count('"queued"') == 1
    source = write_lines(
        tmp_path / "in.jsonl",
        [
            completion("a", "w1", max_tokens=2),
            *(completion(name, "w1", max_tokens=2, model="gpt-4o mini") for name in "bc"),
        ],
    )
    done = invoke("batch", "run", source, "-o", tmp_path / "out.jsonl", "--model", counting, "--json")
    assert done.exit_code == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if line.startswith("millstream: ")]
    assert said[0].startswith("millstream: 3 lines to run: about ")
    assert said[1].startswith(
        f"millstream: body.model 'gpt-4o mini' in 2 lines: answered by {counting}, which answers all lines"
    )
    assert "using an embedded server" in said[2]
    loading = [line for line in said if "loading the model" in line]
    assert loading[0].endswith("loading the model, 0 s: starting the worker")
    assert any(": starting the engine" in line for line in loading)
    assert re.fullmatch(r"millstream: the model was loaded in \d+ s", said[3 + len(loading)])
    texts = [row["response"]["body"]["choices"][0]["text"] for row in read_rows(tmp_path / "out.jsonl")]
    assert texts == [counted(2, 2)] * 3
    assert invoke("result", job_id).stdout == f"{counted(8, 3)}\n"  # was answered along with the batch
    other = invoke("batch", "run", source, "-o", tmp_path / "out.jsonl", "--model", "another")
    assert other.exit_code == 2
    assert "was begun with counting" in other.stderr


def test_single_jobs_without_any_server(counting: str) -> None:
    streamed = invoke("submit", "w1", "--max-tokens", 3, "--stream", "--model", counting)
    assert (streamed.exit_code, streamed.stdout) == (0, f"{counted(2, 3)}\n"), streamed.stderr
    submitted = invoke("submit", "w5", "--max-tokens", 2, "--id", "later")
    job_id = submitted.stdout.strip()
    assert "using an embedded server" in submitted.stderr
    assert f"it waits for a worker; for one, and the answer: millstream result {job_id}" in submitted.stderr
    waited = invoke("result", job_id, "--wait", "--model", counting)
    assert (waited.exit_code, waited.stdout) == (0, f"{counted(6, 2)}\n"), waited.stderr
    again = invoke("stream", job_id, "--model", counting)
    assert (again.exit_code, again.stdout) == (0, f"{counted(6, 2)}\n"), again.stderr


def test_a_finished_batch_starts_neither_a_server_nor_a_model(counting: str, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", [completion("a", "w1", max_tokens=2), "{bad"])
    command = ("batch", "run", source, "-o", tmp_path / "out.jsonl", "--model", counting, "--json")
    assert invoke(*command).exit_code == 0
    shutil.rmtree(tmp_path / "home")
    done = invoke(*command)
    assert done.exit_code == 0, done.stderr
    assert "embedded server" not in done.stderr
    assert not (tmp_path / "home").exists()
    summary = json.loads(done.stdout)
    assert (summary["completed"], summary["failed"], summary["skipped"]) == (0, 0, 2)


class EmbeddedRun:
    """A batch of one line, whose row gets no further than its first token while the gate is closed."""

    def __init__(self, folder: Path, model: str, gate: Path) -> None:
        self.home, self.gate, self.out = folder / "home", gate / "1", folder / "out.jsonl"
        self.gate.touch()
        source = write_lines(folder / "in.jsonl", [completion("a", "w1", max_tokens=5)])
        self.command = ("batch", "run", source, "-o", self.out, "--model", f"{model},gate={gate}")

    @contextlib.contextmanager
    def started(self) -> Iterator[tuple[subprocess.Popen[str], Instance]]:
        """The command, and its embedded server's note, once the job has come as far as the gate."""
        kept = {name: os.environ[name] for name in ("MILLSTREAM_HOME", "MILLSTREAM_ENGINE_COMMAND")}
        with process(*self.command, **kept) as running:
            assert running.stderr is not None
            while "using an embedded server" not in running.stderr.readline():
                pass
            note = None
            while note is None or note.worker is None:
                note = Instance.read(self.home / "embedded")
            assert os.getsid(note.server) == note.server  # Ctrl-C does not reach it
            assert os.getsid(note.worker) == note.worker
            with redis.Redis(unix_socket_path=note.socket) as client:
                while not any(b":tokens:" in key for key in client.scan_iter()):
                    pass
            yield running, note


def test_lines_too_long_for_the_own_worker_are_told(counting: str, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", [completion("long", "w1 " * 400, max_tokens=3)])
    done = invoke("batch", "run", source, "-o", tmp_path / "out.jsonl", "--model", f"{counting},context=64")
    assert "1 line may be too long for the model (estimated): it holds 64 tokens" in done.stderr


@pytest.fixture
def run(counting: str, tmp_path: Path, gate: Path) -> EmbeddedRun:
    return EmbeddedRun(tmp_path, counting, gate)


def test_ctrl_c_stops_the_worker_and_the_server(run: EmbeddedRun) -> None:
    with run.started() as (running, note):
        running.send_signal(signal.SIGINT)
        _, messages = running.communicate(timeout=60)
    assert running.returncode == 130, messages
    assert "1 job of this run stays in the embedded server; to cancel: millstream batch cancel" in messages
    assert not alive(note.server)
    assert not alive(note.worker or 0)
    cancelled = invoke("batch", "cancel", run.out, "--json")
    assert json.loads(cancelled.stdout) == {"cancelled": 1, "ended": 0, "running": 0, "unknown": 0}


@pytest.mark.parametrize("victim", ["server", "worker", "command"])
def test_a_killed_process_ends_the_run_which_can_be_resumed(run: EmbeddedRun, victim: str) -> None:
    with run.started() as (running, note):
        assert note.worker is not None
        os.kill({"server": note.server, "worker": note.worker}.get(victim, running.pid), signal.SIGKILL)
        _, messages = running.communicate(timeout=60)
    if victim != "command":
        assert running.returncode == 3, messages
        assert f"the {'embedded server' if victim == 'server' else 'worker'} ended" in messages
        assert "Traceback" not in messages.partition("ended")[0]
        assert not alive(note.server)
        assert not alive(note.worker)
    run.gate.unlink()
    begun = read_rows(run.out.with_suffix(".run.jsonl"))[0]["run"]
    done = invoke(*run.command)
    assert done.exit_code == 0, done.output
    [row] = read_rows(run.out)
    assert row["response"]["body"]["choices"][0]["text"] == counted(2, 5)
    assert row["response"]["request_id"].startswith(f"0-{begun}.")  # the same job, gone on with
    assert not alive(note.server)
    assert not alive(note.worker)


def test_ctrl_c_twice_does_not_wait(run: EmbeddedRun) -> None:
    with run.started() as (running, note):
        os.kill(note.worker or 0, signal.SIGSTOP)  # it does not end on request
        running.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            running.wait(3.0)
        running.send_signal(signal.SIGINT)
        _, messages = running.communicate(timeout=15)
    assert running.returncode == 130, messages
    assert "Traceback" not in messages
    assert not alive(note.server)
    assert not alive(note.worker or 0)


def test_a_slower_worker_is_told_with_its_reason(counting: str) -> None:
    done = invoke("submit", "w1", "--max-tokens", 3, "--wait", "--model", f"{counting},check_fault=1")
    assert done.exit_code == 0, done.stderr
    assert re.search(r"^millstream: slower: .*CUDA error", done.stderr, re.MULTILINE), done.stderr


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("./nowhere", "no such file or folder"),
        ("nowhere.gguf", "no such file or folder"),
        ("empty", "the folder is empty"),
        ("text.gguf", "is no GGUF file"),
        ("folder/config.json", "a single file must be a .gguf; of a safetensors model, name the folder"),
        ("weights", "to run a GGUF file, name the file: weights/real.gguf"),
        ("x" * 300, "cannot be read"),
    ],
)
def test_a_path_that_can_be_no_model_starts_nothing(
    model: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MILLSTREAM_REDIS_URL", raising=False)
    monkeypatch.setenv("MILLSTREAM_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    for name in ("empty", "folder", "weights"):
        Path(name).mkdir()
    for name in ("text.gguf", "folder/config.json", "weights/real.gguf"):
        Path(name).write_text("{}")
    source = write_lines(tmp_path / "in.jsonl", [completion("a", "w1", max_tokens=2)])
    for command in (
        ("batch", "run", source, "-o", tmp_path / "out.jsonl", "--model", model),
        ("submit", "w1", "--wait", "--model", model),
    ):
        assert_refused(f"--model: {says}" if not model.startswith("weights") else says, *command)
    assert not (tmp_path / "home").exists()
    assert not (tmp_path / "out.jsonl").exists()


def test_a_wrong_schema_is_told_before_a_model_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MILLSTREAM_REDIS_URL", raising=False)
    monkeypatch.setattr("millstream.cli.batch.batch_command.choose_model", None)
    source = write_lines(tmp_path / "in.jsonl", [completion("a", "w1", max_tokens=2)])
    assert_refused("--schema: ", "batch", "run", source, "-o", tmp_path / "out.jsonl", "--schema", "nowhere")


def test_a_model_that_cannot_be_loaded_is_one_clear_message(counting: str, tmp_path: Path) -> None:
    done = invoke("submit", "w1", "--wait", "--model", f"{counting},broken=out of luck")
    assert done.exit_code == 3
    assert done.stderr.splitlines()[-1].startswith("millstream: error: out of luck (the worker's log: ")
    assert str(tmp_path / "home" / "embedded" / "worker.log") in done.stderr
