"""When the model is compiled: what is asked for, kept, ended badly, and the moment between steps."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from importlib import metadata
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
import torch

from millstream_worker.engine import assembly, compilation, runner
from millstream_worker.engine.compilation import Compilation
from millstream_worker.engine.engine import Engine
from millstream_worker.engine.protocol.config import EngineConfig
from millstream_worker.engine.protocol.request import EngineRequest, SamplingSpec
from millstream_worker.engine.runner.compiled import cache
from millstream_worker.engine.runner.compiled.cache import CompileCache
from millstream_worker.engine.runner.compiled.compile import CannotCompile
from millstream_worker.engine.runner.linear.panel import PanelLinear
from millstream_worker.engine.runner.model.load import LoadedModel, load_model
from millstream_worker.engine.runner.self_check.findings import Findings

# Forked children die at once: what other threads hold does not matter to them.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")


class Compiler:
    """Stands for torch's, which takes its time."""

    def __init__(self) -> None:
        self.calls = 0
        self.error: Exception | None = None

    def __call__(self, loaded: LoadedModel, cache: Path, *_: object, **__: object) -> float:
        self.calls += 1
        if self.error is not None:
            raise self.error
        return 0.0


@pytest.fixture
def compiler() -> Compiler:
    return Compiler()


@pytest.fixture
def folder(checkpoint: Callable[[str], Path]) -> str:
    return str(checkpoint("llama"))


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def start(folder: str, tmp_path: Path, said: list[str], compiler: Compiler) -> Callable[..., Compilation]:
    """An engine's start, with one folder for what is kept."""
    loaded = load_model(folder, dtype=torch.float32, device=torch.device("cpu"))

    def start(
        name: str = "auto", device: str = "cpu", free: int = 2**33, loaded: LoadedModel = loaded
    ) -> Compilation:
        config = EngineConfig(folder, compile_model=name, cache_dir=str(tmp_path))
        model = replace(loaded, device=torch.device(device))
        begun = Compilation(config, model, Findings(said.append), lambda: None, compiler, lambda _: free)
        begun.at_start()
        return begun

    return start


def work(begun: Compilation, step_s: float = 0.01) -> list[bool]:
    """What a worker does that has been busy for long enough, with steps of this mean duration; whether the
    model was compiled when that ended."""
    ended: list[bool] = []
    later = begun.later(lambda: ended.append(begun.done))
    assert later is not None
    assert later.busy_s == compilation.BUSY_S
    later.work(step_s)
    return ended


def nothing() -> None:
    pass


def test_the_cpu_compiles_after_a_busy_minute_then_at_each_start(
    start: Callable[..., Compilation], compiler: Compiler
) -> None:
    first = start()
    assert compiler.calls == 0
    assert work(first) == [True]
    assert compiler.calls == 1
    again = start()
    assert compiler.calls == 2
    assert again.later(nothing) is None


def test_as_it_is_asked_for(start: Callable[..., Compilation], compiler: Compiler) -> None:
    for name, calls in (("off", 0), ("on", 1)):
        assert start(name).later(nothing) is None
        assert compiler.calls == calls


def test_a_compilation_that_failed_twice_is_not_retried_unasked(
    start: Callable[..., Compilation], compiler: Compiler, said: list[str]
) -> None:
    compiler.error = CannotCompile("no compiler")
    assert work(start()) == [False]
    work(start())
    assert said == ["the model is not compiled: no compiler"] * 2

    said.clear()
    compiler.error = None
    work(start())
    assert compiler.calls == 2
    assert said == [
        "the model is not compiled: earlier attempts ended badly; MILLSTREAM_COMPILE_MODEL=on tries again"
    ]
    start("on")
    assert compiler.calls == 3
    start()
    assert compiler.calls == 4


@pytest.mark.parametrize(("name", "device"), [("on", "cpu"), ("auto", "cuda")])
def test_code_that_kills_the_process_at_start_is_left_alone(
    name: str, device: str, start: Callable[..., Compilation], compiler: Compiler, said: list[str]
) -> None:
    """Half a library, say, or one of another processor: an engine must not die at every start. On a GPU it is
    compiled at start."""
    begun = start(name, device)
    assert begun._kept.ready
    assert begun.later(nothing) is None
    for _ in range(2):
        die_in(begun._kept)
    assert start(device=device).later(nothing) is None
    assert compiler.calls == 1
    assert "earlier attempts ended badly" in said[-1]


def die_in(kept: CompileCache) -> None:
    """A process of its own is killed in the middle of a compilation."""
    child = os.fork()
    if child == 0:
        with kept.compilation():
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)


def test_what_another_worker_is_at_is_no_bad_end(start: Callable[..., Compilation]) -> None:
    kept = start()._kept
    for _ in range(2):
        die_in(kept)
    assert kept.abandoned
    with kept.compilation():
        assert not kept.abandoned
    assert not kept.abandoned
    assert kept.ready


def test_other_threads_have_other_code(start: Callable[..., Compilation]) -> None:
    begun, threads = start(), torch.get_num_threads()
    folder = begun._kept.folder
    torch.set_num_threads(threads + 1)
    try:
        assert begun._kept.folder != folder
    finally:
        torch.set_num_threads(threads)


def test_narrow_weights_have_other_code(folder: str, tmp_path: Path) -> None:
    """They lie in memory otherwise, though models of one configuration have either."""
    folders = set()
    for dtype in (torch.float32, torch.bfloat16):
        loaded = load_model(folder, dtype=torch.float32, device=torch.device("cpu"))
        layers = [module for module in loaded.model.modules() if isinstance(module, PanelLinear)]
        if not layers:
            pytest.skip("needs a library that multiplies")
        for layer in layers:
            layer.panels.data = layer.panels.to(dtype)
        folders.add(CompileCache(tmp_path, loaded).folder)
    assert len(folders) == 2


def test_a_checkout_that_is_not_installed_compiles_too(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(package: str) -> str:
        if package == "millstream":
            raise PackageNotFoundError(package)
        return metadata.version(package)

    loaded = load_model(folder, dtype=torch.float32, device=torch.device("cpu"))
    installed = CompileCache(tmp_path, loaded).folder
    monkeypatch.setattr(cache, "version", version)
    assert CompileCache(tmp_path, loaded).folder != installed


def test_steps_are_short_for_the_number_of_layers_of_any_kind(
    start: Callable[..., Compilation], checkpoint: Callable[[str], Path]
) -> None:
    hybrid = load_model(str(checkpoint("lfm2")), dtype=torch.float32, device=torch.device("cpu"))
    assert len(hybrid.layer_specs) == 1
    assert work(start(loaded=hybrid), step_s=3.9 * compilation._LAYER_S) == [True]


def test_operations_are_part_of_what_kept_code_depends_on() -> None:
    files = Path(runner.__file__).parent.rglob("*.py")
    defining = {str(file) for file in files if re.search(r"^define\(", file.read_text(), re.MULTILINE)}
    assert len(defining) > 4
    assert defining <= set(cache._SOURCES)


def test_it_needs_memory_short_steps_and_a_folder_of_its_own(
    start: Callable[..., Compilation], compiler: Compiler, said: list[str], tmp_path: Path
) -> None:
    work(start(free=2**29))
    assert said == ["the model is not compiled: compiling needs 1 GiB of memory, 0.5 GiB are free"]
    begun = start()
    assert work(begun, step_s=1.01 * compilation._LAYER_S * len(begun.loaded.layer_specs)) == []
    assert "steps of 0.02 s gain too little" in said[-1]
    begun._kept.folder.mkdir(parents=True)
    begun._kept.folder.chmod(0o777)
    work(begun)
    assert "can be written by others" in said[-1]
    shutil.rmtree(tmp_path / "compiled")
    (tmp_path / "compiled").touch()
    work(start())
    assert "Not a directory" in said[-1]
    assert compiler.calls == 0


def run(engine: Engine[Any], *, due_after: int | None = None) -> list[int]:
    """The tokens of a row; with what is due done after so many of them."""
    greedy = SamplingSpec(temperature=0.0)
    assert engine.add(EngineRequest(1, tuple(range(3, 20)), 12, greedy, priority=1)) is None
    tokens: list[int] = []
    while not engine.idle:
        step = engine.step()
        assert step is not None
        tokens += step.tokens
        if len(tokens) == due_after:
            due = engine.take_due()
            assert due is not None
            due()
            torch.compiler.set_stance("fail_on_recompile")  # else it could go on as it was, unnoticed
    return tokens


@pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler")
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.slow
def test_in_the_middle_of_a_row(folder: str, tmp_path: Path, own_cache: str) -> None:
    said: list[str] = []
    config = EngineConfig(
        folder, device="cpu", threads=1, kv_memory="1MiB", cache_dir=own_cache, compile_model="auto"
    )
    plain, _ = assembly.build(replace(config, compile_model="off"), lambda message: None)
    assert plain.take_due() is None
    engine, _ = assembly.build(config, said.append)
    assert engine.later is not None
    engine.later = replace(engine.later, busy_s=0.0)

    tokens = run(engine, due_after=5)

    assert tokens == run(plain)
    assert said[-3].startswith("model compiled in ")
    assert said[-2].startswith("compiled model checked: off by at most ")
    assert said[-1] == "short steps are recorded and replayed"
    assert engine.take_due() is None
    assert len(list((tmp_path / "compiled").glob("*/ready"))) == 1
