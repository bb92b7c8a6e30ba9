"""Where the library comes from, and what happens where it does not come."""

from __future__ import annotations

import copy
import os
import re
import shutil
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from support.engine.libraries import script

from millstream_worker.engine.runner.attention.native.native_backend import NativeAttention
from millstream_worker.engine.runner.attention.torch_backend import TorchAttention
from millstream_worker.engine.runner.kv.layer_spec import LayerSpec
from millstream_worker.engine.runner.kv.storage import KVStorage
from millstream_worker.engine.runner.model import attention_choice
from millstream_worker.engine.runner.native import build as building
from millstream_worker.engine.runner.native import compiler as compiling
from millstream_worker.engine.runner.native.build import build
from millstream_worker.engine.runner.native.compiler import CannotBuild
from millstream_worker.engine.runner.native.library import Library
from millstream_worker.engine.runner.self_check import library_check
from millstream_worker.engine.runner.self_check.deviation import Mismatch

CPU = torch.device("cpu")
COPIES = b"""case "$*" in
--version) echo "a compiler";;
*-shared*) for last; do :; done; cp '%s' "$last";;
*) :;;
esac
"""
STORAGE = KVStorage([LayerSpec(2, 1, 8, 8, scale=1.0)], 2, 4, torch.float32, CPU)


def files(cache: Path) -> list[str]:
    return sorted(path.name for path in (cache / "native").iterdir())


@pytest.fixture
def copier(cache: Path, tmp_path: Path) -> str:
    """A compiler that takes no time: what it links is the library that is there."""
    [library] = (cache / "native").iterdir()
    return script(tmp_path, COPIES % os.fsencode(library))


def test_it_is_compiled_once(cache: Path) -> None:
    before = {file.name: file.stat().st_ino for file in (cache / "native").iterdir()}
    build(cache)
    assert {file.name: file.stat().st_ino for file in (cache / "native").iterdir()} == before
    assert all(name.startswith("kernels-") for name in before), "nothing is left of the compilation"


@pytest.mark.usefixtures("library")
def test_other_sources_are_another_library(tmp_path: Path) -> None:
    compiler = building._compiler()
    digest = building._digest(*compiler, building.FLAGS)
    shutil.copytree(building._SOURCES, tmp_path / "src")
    assert building._digest(*compiler, building.FLAGS, tmp_path / "src") == digest
    (tmp_path / "src" / "tile.h").write_text("// changed")
    assert building._digest(*compiler, building.FLAGS, tmp_path / "src") != digest


@pytest.mark.slow
def test_two_processes_at_once(copier: str, tmp_path: Path) -> None:
    """Both compile; both get what works."""
    code = (
        "import sys, pathlib\n"
        "from millstream_worker.engine.runner.native.build import build\n"
        "build(pathlib.Path(sys.argv[1]))\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "cache")]
    environment = os.environ | {"CXX": copier}
    started = [
        subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) for _ in range(2)
    ]
    assert [process.communicate()[1] for process in started] == ["", ""]
    assert len(files(tmp_path / "cache")) == 1


def test_without_a_compiler_plain_pytorch_computes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    chosen = attention_choice.choose("auto", CPU, torch.float32, str(tmp_path))
    assert chosen.name == "torch"
    assert "there is no C++ compiler (g++, clang++, c++)" in chosen.reason
    assert isinstance(chosen.build(STORAGE), TorchAttention)
    with pytest.raises(ValueError, match="'native' cannot be had: there is no C\\+\\+ compiler"):
        attention_choice.choose("native", CPU, torch.float32, str(tmp_path))


@pytest.mark.usefixtures("library")
def test_with_one_it_is_the_choice_of_the_cpu(cache: Path) -> None:
    for name in ("auto", "native"):
        chosen = attention_choice.choose(name, CPU, torch.bfloat16, str(cache))
        assert chosen.name == "native"
        assert re.fullmatch("compiled for .*, multiplies bfloat16 as (tiles|pairs|float32)", chosen.reason)
    assert isinstance(
        attention_choice.choose("auto", CPU, torch.float32, str(cache)).build(STORAGE), NativeAttention
    )
    assert attention_choice.choose("torch", CPU, torch.float32, str(cache)).name == "torch"
    half = attention_choice.choose("auto", CPU, torch.float16, str(cache))
    assert (half.name, "does not compute float16" in half.reason) == ("torch", True)


@pytest.mark.usefixtures("library")
def test_a_compiler_may_be_a_command_with_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    (plain, *_), version = building._compiler()
    monkeypatch.setenv("CXX", f"env LC_ALL=C '{plain}'")
    command, _ = building._compiler()
    assert command[1:] == ("LC_ALL=C", plain)
    assert compiling.run(*command, "--version").startswith(version)


@pytest.mark.parametrize(
    ("named", "reason"),
    [
        ("g++ 'x", 'CXX is "g\\+\\+ \'x", which is no command: No closing quotation'),
        ("nowhere/g++ -O2", "no C\\+\\+ compiler \\(nowhere/g\\+\\+ -O2\\)"),
    ],
)
def test_a_command_that_is_none(
    named: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", named)
    with pytest.raises(CannotBuild, match=reason):
        build(tmp_path)


def test_what_a_killed_compiler_left_is_cleared(tmp_path: Path) -> None:
    """Not what another is at."""
    folder = tmp_path / "native"
    for name, age_s in (("compiling-old", 7200.0), ("compiling-new", 60.0), ("kernels-x", 7200.0)):
        (folder / name).mkdir(parents=True)
        (folder / name / "paged.o").touch()
        os.utime(folder / name, (time.time() - age_s,) * 2)
    building._clear(folder)
    assert files(tmp_path) == ["compiling-new", "kernels-x"]


def test_a_failing_compiler_is_quoted_even_when_not_utf8(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CannotBuild, match=r"failed with status 1: .*error: .*z80"):
        build(tmp_path, (*building.FLAGS, "-march=z80"))
    assert files(tmp_path) == []
    monkeypatch.setenv("CXX", script(tmp_path, b"echo '\xe9: error: no' >&2\nexit 1\n"))
    with pytest.raises(CannotBuild, match=r"compiler failed with status 1: .*: error: no"):
        build(tmp_path)


@pytest.mark.usefixtures("library")
def test_a_folder_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CannotBuild, match="Not a directory"):
        build(tmp_path / "file")


@pytest.mark.parametrize(
    ("content", "mode", "says"),
    [(None, 0o722, "can be written by others"), (b"no library", 0o700, r"kernels-.*\.so")],
    ids=["others could have written it", "no library"],
)
def test_a_file_that_cannot_be_run(
    content: bytes | None, mode: int, says: str, cache: Path, tmp_path: Path
) -> None:
    shutil.copytree(cache / "native", tmp_path / "native")
    for file in (tmp_path / "native").iterdir():
        if content:
            file.write_bytes(content + building._seal(content))
        file.chmod(mode)
    with pytest.raises(CannotBuild, match=says):
        build(tmp_path)


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_library_that_is_not_whole_is_compiled_anew(
    share: float, copier: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash of the machine may leave any part of it. To load one could end the process, at every start."""
    monkeypatch.setenv("CXX", copier)
    compiler = building._compiler()
    file = tmp_path / "native" / f"kernels-{building._digest(*compiler, building.FLAGS)}.so"
    building._compile(compiler[0], building.FLAGS, file)
    whole = file.read_bytes()
    file.write_bytes(whole[: int(share * len(whole))])
    build(tmp_path)
    assert files(tmp_path) == [file.name]
    assert file.read_bytes() == whole


def test_a_library_that_computes_something_else_is_not_used(library: Library) -> None:
    library_check.check(library)
    wrong = copy.copy(library)
    vars(wrong).update({"most_likely": {torch.float32: lambda *given: None}})
    with pytest.raises(Mismatch, match="most likely token is wrong"):
        library_check.check(wrong)


def test_it_computes_with_torchs_threads_and_no_others(cache: Path, library: Library) -> None:
    """One OpenMP runtime in the process, one team in it."""
    code = (
        "import os, pathlib, sys, torch\n"
        "from millstream_worker.engine.runner.self_check.library_check import check\n"
        "from millstream_worker.engine.runner.native.build import build\n"
        "torch.set_num_threads(3)\n"
        "torch.ones(2_000_000).exp_()\n"
        "count = lambda: len(os.listdir('/proc/self/task'))\n"
        "def runtimes():\n"
        "    files = {line.split()[-1] for line in open('/proc/self/maps')}\n"
        "    return {file for file in files if 'omp' in file.split('/')[-1]}\n"
        "before, loaded = count(), runtimes()\n"
        "check(build(pathlib.Path(sys.argv[1])))\n"
        "torch.ones(2_000_000).exp_()\n"
        "print(before, count(), runtimes() - loaded)\n"
    )
    environment = os.environ | {"OMP_NUM_THREADS": "3"}
    command = [sys.executable, "-c", code, str(cache)]
    answer = subprocess.run(
        command, capture_output=True, text=True, check=True, env=environment
    ).stdout.split()
    assert answer[0] == answer[1]
    assert answer[2:] == ["set()"]


FAKE = b"""case "$*" in
--version) sleep 1; echo "a compiler";;
*-shared*) sleep 1; for last; do :; done; echo linked > "$last";;
*) :;;
esac
"""


def test_an_engine_is_alive_while_a_compiler_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which says its version, or links: the compiler has its limit, before which the engine is not killed."""
    monkeypatch.setenv("CXX", script(tmp_path, FAKE))
    times = [time.monotonic()]
    with pytest.raises(CannotBuild):  # what it has linked is no library
        build(tmp_path / "cache", mark=lambda: times.append(time.monotonic()))
    times.append(time.monotonic())
    assert times[-1] - times[0] > 2
    assert max(after - before for before, after in pairwise(times)) < 0.8
