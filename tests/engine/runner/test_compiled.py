"""Compiled layers: the same tokens, one compilation per kind of layer, and a model that goes on without.

Most cases are traced and run as they were traced, which takes no compiler; one goes all the way.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.serving import Served, serve
from torch._dynamo.utils import counters

from millstream_worker.engine.request import EngineRequest, SamplingSpec
from millstream_worker.engine.runner import operation
from millstream_worker.engine.runner.compiled import CannotCompile, compile_layers
from millstream_worker.engine.runner.model import LoadedModel

Load = Callable[[str], LoadedModel]
ALIKE = ["llama", "gpt2"]  # all layers of one kind
MIXED = ["gemma2", "gpt_oss"]


pytestmark = pytest.mark.usefixtures("fresh_compiler")


def run(loaded: LoadedModel) -> Served:
    """Rows that start and end at different times, so that steps have 1 to 24 tokens."""
    sampling = SamplingSpec(temperature=0.0, top_logprobs=0)
    requests = [
        EngineRequest(handle, tuple(range(3 + handle, 3 + handle + length)), tokens, sampling)
        for handle, (length, tokens) in enumerate([(30, 9), (1, 4), (17, 3), (7, 7)])
    ]
    return serve(loaded, [(handle * 2, request) for handle, request in enumerate(requests)], blocks=40)


def compilations() -> int:
    return counters["stats"]["unique_graphs"]


@pytest.mark.parametrize("case", [*ALIKE, *MIXED])
@pytest.mark.slow
def test_the_tokens_and_how_often_it_is_compiled(case: str, load: Load, tmp_path: Path) -> None:
    want, loaded = run(load(case)), load(case)
    said: list[str] = []

    compile_layers(loaded, tmp_path, said.append, backend="aot_eager")
    before = compilations()
    torch.compiler.set_stance("fail_on_recompile")  # in the middle of the work, or run what is not compiled
    got = run(loaded)

    assert got.tokens == want.tokens
    for handle, logprobs in want.logprobs.items():
        assert got.logprobs[handle] == pytest.approx(logprobs, abs=5e-5)
    assert 4 <= before <= (4 if case in ALIKE else 6)  # one token, and more: of layers, and what is around
    assert compilations() == before
    assert said[0] == "compiling 2 layers"
    assert said[1].startswith("layers compiled in ")


@pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler")
@pytest.mark.timeout(600)
@pytest.mark.slow
def test_machine_code(load: Load, tmp_path: Path) -> None:
    want, loaded = run(load("llama")), load("llama")
    compile_layers(loaded, tmp_path / "kept", lambda message: None)
    with torch.profiler.profile() as profile:
        assert run(loaded).tokens == want.tokens
    called = {event.key for event in profile.key_averages()}
    assert not [name for name in called if name.startswith("millstream::")], "calls by way of torch's"
    assert list((tmp_path / "kept").rglob("*.so")), "nothing is there for the next start"
    assert (tmp_path / "kept").stat().st_mode & 0o077 == 0, "others may put code there"


@pytest.mark.slow
def test_operations_go_by_way_of_torchs_where_the_compiler_cannot_be_told(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    want, loaded = run(load("llama")), load("llama")
    monkeypatch.delattr("torch._inductor.ir.ExternKernel.set_python_kernel_name")
    with pytest.raises(AttributeError, match="set_python_kernel_name"):
        operation.call_directly()
    monkeypatch.setattr(operation, "_lowered", None)  # nobody gets there
    compile_layers(loaded, tmp_path, lambda message: None, backend="aot_eager")
    assert run(loaded).tokens == want.tokens


def test_without_a_compiler_the_model_stays_as_it_was(load: Load, tmp_path: Path) -> None:
    want, loaded = run(load("llama")), load("llama")
    missing = torch._inductor.config.patch({"cpp.cxx": (None, "no-such-compiler")})
    with missing, pytest.raises(CannotCompile, match="no-such-compiler"):
        compile_layers(loaded, tmp_path, lambda message: None)
    assert run(loaded).tokens == want.tokens


@pytest.mark.slow
@pytest.mark.parametrize("error", [AssertionError("of theirs"), AttributeError("gone"), IndexError()])
def test_whatever_a_compiler_raises(error: Exception, load: Load, tmp_path: Path) -> None:
    def broken(graph: torch.fx.GraphModule, inputs: object) -> None:
        raise error

    loaded = load("llama")
    with pytest.raises(CannotCompile):
        compile_layers(loaded, tmp_path, lambda message: None, backend=broken)
    assert run(loaded).tokens == run(load("llama")).tokens


def test_a_folder_that_cannot_be_made(load: Load, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CannotCompile, match="Not a directory"):
        compile_layers(load("llama"), tmp_path / "file" / "kept", lambda message: None)


def test_a_model_whose_code_cannot_be_traced_goes_on_without(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    want, loaded = run(load("llama")), load("llama")
    assert loaded.anatomy.layers is not None
    layer = type(loaded.anatomy.layers[0])
    original = layer.forward

    def forward(self: torch.nn.Module, *args: object, **options: object) -> object:
        torch._dynamo.graph_break()
        return original(self, *args, **options)

    monkeypatch.setattr(layer, "forward", forward)
    with pytest.raises(CannotCompile, match="graph_break"):
        compile_layers(loaded, tmp_path, lambda message: None, backend="aot_eager")
    assert run(loaded).tokens == want.tokens
