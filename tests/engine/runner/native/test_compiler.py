"""What a compiler may take, and that nothing of it stays."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from support.engine.libraries import script

from millstream_worker.engine.runner.native import compiler
from millstream_worker.engine.runner.native.build import FLAGS
from millstream_worker.engine.runner.native.compiler import CannotBuild, CompileLimits, run, run_all
from millstream_worker.engine.session_cpu import session_cpu_s

BURN = b"while :; do :; done\n"
Held = Callable[[], bool]


@pytest.fixture
def held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    """True while a process has the pipe `held` open for writing. Commands find it in their folder."""
    os.mkfifo(tmp_path / "held")
    monkeypatch.chdir(tmp_path)
    reader = os.open(tmp_path / "held", os.O_RDONLY | os.O_NONBLOCK)

    def is_held() -> bool:
        select.select([reader], [], [], 30)
        return os.read(reader, 1) != b""

    yield is_held
    os.close(reader)


def test_a_hanging_compiler_is_killed_with_its_children(tmp_path: Path, held: Held) -> None:
    """What is started as a compiler starts others that do the work."""
    with pytest.raises(CannotBuild, match="compiler had not ended after 1 s"):
        run(script(tmp_path, b"sleep 60 > held &\nwait\n"), limits=CompileLimits(wall_s=1.0))
    assert not held()


@pytest.mark.slow
def test_a_compiler_that_computes_too_long_is_given_up(tmp_path: Path, held: Held) -> None:
    """Its CPU time is that of all its processes, also of those that have ended."""
    begun_s = time.process_time()
    command = script(tmp_path, b"timeout 0.7 sh -c 'while :; do :; done'\n(" + BURN.strip() + b") > held\n")
    with pytest.raises(CannotBuild, match="compiler took more than 1 s of CPU time"):
        run(command, limits=CompileLimits(cpu_s=1.0))
    assert not held()
    assert time.process_time() - begun_s < 1, "looking takes little"


def test_commands_share_what_they_may_compute(tmp_path: Path) -> None:
    """Also what those have computed that have ended."""
    code = "import time\nwhile time.process_time() < 0.6: pass"
    with pytest.raises(CannotBuild, match="more than 1 s of CPU time"):
        run_all([[sys.executable, "-c", code]] * 8, limits=CompileLimits(cpu_s=1.0))


def test_a_compiler_that_is_held_up_may_take_its_time(tmp_path: Path) -> None:
    """Stopped, as on a machine where it gets nothing, it has computed nothing."""
    source = tmp_path / "one.cpp"
    source.write_text("int one() { return 1; }")
    marks: list[float] = []
    slow = script(tmp_path, b'(sleep 2; kill -CONT $$) &\nkill -STOP $$\nexec g++ "$@"\n')
    begun_s = time.monotonic()
    run_all(
        [(slow, *FLAGS, "-c", str(source))],
        folder=str(tmp_path),
        limits=CompileLimits(cpu_s=1.5),
        mark=lambda: marks.append(time.monotonic()),
    )
    assert (tmp_path / "one.o").exists()
    assert time.monotonic() - begun_s > 2
    times = [begun_s, *marks, time.monotonic()]
    assert max(after - before for before, after in pairwise(times)) < 1


def test_a_failure_ends_the_others(tmp_path: Path, held: Held) -> None:
    """And what a command leaves running when it ends is no more left behind."""
    slow, bad = tmp_path / "slow", tmp_path / "bad"
    slow.mkdir()
    bad.mkdir()
    commands = [
        [script(slow, b"sleep 60 > held &\nexit 0\n")],
        [script(slow, b"sleep 60 > held &\nexit 0\n")],
        [script(bad, b"echo error: no >&2; exit 3\n")],
    ]
    with pytest.raises(CannotBuild, match="failed with status 3: error: no"):
        run_all(commands)
    assert not held()


def test_as_many_run_at_once_as_there_are_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each waits until another one runs: more than two never do."""
    waits = b"""echo x >> begun
    while [ $(wc -l < begun) -lt 2 ]; do sleep 0.01; done
    ls running* 2> /dev/null | wc -l >> seen
    touch running$$; sleep 0.2; rm running$$; echo $1
    """
    command = script(tmp_path, waits)
    monkeypatch.setattr(compiler, "available_cores", lambda: 2)
    said = run_all([(command, str(n)) for n in range(5)], folder=str(tmp_path))
    assert said == [f"{n}\n" for n in range(5)]
    assert max(map(int, (tmp_path / "seen").read_text().split())) <= 1, "others that ran"


CODE = """
import sys
from millstream_worker.engine.runner.native.compiler import run_all
run_all([[sys.argv[1]]] * 2, folder=sys.argv[2], mark=lambda: print("runs", flush=True))
"""


@pytest.mark.slow
def test_no_compiler_outlives_a_killed_engine(tmp_path: Path, held: Held) -> None:
    folder = tmp_path / "compiling"
    folder.mkdir()
    command = script(tmp_path, b"echo x > ../held; sleep 60 > ../held &\nwait\n")
    with subprocess.Popen(
        [sys.executable, "-c", CODE, command, str(folder)], stdout=subprocess.PIPE, text=True
    ) as engine:
        assert held(), "they have begun"
        engine.send_signal(signal.SIGKILL)
    while held():
        pass
    until = time.monotonic() + 5
    while folder.exists():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_session_has_computed_what_its_processes_have() -> None:
    code = "import time\nwhile time.process_time() < 0.5: pass\nprint(flush=True)\ninput()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert 0.4 < session_cpu_s(process.pid) < 5
        assert session_cpu_s(process.pid, but=process.pid) == 0
        process.communicate(b"\n")
    assert session_cpu_s(process.pid) == 0
