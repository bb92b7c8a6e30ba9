"""Blocked linear layers: what they answer, compiled and not, and models that cannot have them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch._inductor.lowering  # first: the others import it, and each other
from torch import nn
from torch._inductor.codegen.cpp_gemm_template import CppGemmTemplate
from torch._inductor.codegen.cpp_micro_gemm import CppMicroGemmAMX, GemmBlocking

from millstream_worker.engine.runner import blocked, packed
from millstream_worker.engine.runner.blocked import BlockedLinear, block, unblock
from millstream_worker.engine.runner.compiled import CannotCompile, _Blank, compile_layers
from millstream_worker.engine.runner.model import LoadedModel, forward, load_model, occupy
from millstream_worker.engine.runner.packed import PackedLinear, pack

CPU = torch.device("cpu")
BF16 = torch.bfloat16
packs = pytest.mark.skipif(not packed._can_pack(BF16), reason="no packed bfloat16 here")
amx = pytest.mark.skipif(
    not (blocked.usable(CPU) and packed._can_pack(BF16)), reason="there is no AMX, or oneDNN must not use it"
)


def kernel(columns: int) -> CppMicroGemmAMX:
    """One of the compiler's, of which any processor can hear how it wants its weights."""
    return CppMicroGemmAMX("kernel", BF16, BF16, torch.float, torch.float, GemmBlocking(32, columns, 32), 1)


@pytest.fixture
def model(checkpoint: Callable[[str], Path]) -> Callable[[str], LoadedModel]:
    return lambda case: load_model(str(checkpoint(case)), dtype=BF16, device=CPU)


def logits(loaded: LoadedModel, count: int) -> torch.Tensor:
    """Of so many tokens that do not attend to each other."""
    for module, spec in zip(loaded.modules, loaded.layers, strict=True):
        occupy(module, _Blank(spec, lambda: None))
    with torch.inference_mode():  # as in steps
        places = torch.arange(count)
        ids, wanted = places * 7 % loaded.vocab_size, places.clone()
    return forward(loaded.model, ids, places, wanted).float()


@packs
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("inputs", "outputs", "columns"), [(64, 96, 32), (2, 5, 16), (34, 70, 48)])
@torch.inference_mode()
def test_answers_what_linear_does(inputs: int, outputs: int, columns: int, bias: bool) -> None:
    linear = nn.Linear(inputs, outputs, bias=bias).to(BF16).eval()
    layer = BlockedLinear(PackedLinear(linear.weight, linear.bias), kernel(columns))
    assert torch.equal(layer.weight, linear.weight)
    for shape in ((1, inputs), (1, 7, inputs)):
        rows = torch.randn(shape).to(BF16)
        torch.testing.assert_close(layer(rows), linear(rows), atol=2e-2, rtol=1e-2)


@packs
def test_a_layer_gets_its_own_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocked, "_kernel", lambda layer: kernel(32) if layer.in_features > 8 else None)
    inner = nn.Sequential(nn.Linear(16, 40), nn.Linear(8, 8))
    layer = nn.ModuleDict({"inner": inner, "again": nn.Sequential(inner[0]), "norm": nn.LayerNorm(4)})
    layer.to(BF16)
    weight = inner[0].weight.clone()
    pack(layer)

    block(layer)
    assert [type(part) for part in inner] == [BlockedLinear, PackedLinear]
    assert layer["again"][0] is inner[0], "its weight is there twice"
    unblock(layer)

    assert type(inner[0]) is PackedLinear
    assert layer["again"][0] is inner[0]
    assert torch.equal(inner[0].weight, weight)


@amx
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler")
@pytest.mark.parametrize("case", ["llama-llama3", "gpt2"])  # without biases, and with them
@pytest.mark.timeout(600)
def test_compiled(case: str, model: Callable[[str], LoadedModel], tmp_path: Path) -> None:
    plain, compiled = model(case), model(case)
    said: list[str] = []
    compile_layers(compiled, tmp_path, said.append)
    assert not [message for message in said if "oneDNN" in message]
    assert {type(part) for part in compiled.modules[0].modules()} >= {BlockedLinear}
    torch.compiler.set_stance("fail_on_recompile")  # or what is compared ran as it was
    for count in (1, 2, 31, 32, 33, 64):
        torch.testing.assert_close(logits(compiled, count), logits(plain, count), atol=5e-2, rtol=5e-2)


@pytest.fixture
def no_amx_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers are blocked on any processor; code for them is traced, not compiled."""
    monkeypatch.setattr(blocked, "has_amx", lambda: True)
    monkeypatch.setattr(packed, "has_amx", lambda: True)
    monkeypatch.setattr(blocked, "_kernel", lambda layer: kernel(32))


def renamed(*args: object, **options: object) -> None:
    raise AttributeError("it is called something else")


@pytest.mark.slow
@packs
@pytest.mark.usefixtures("no_amx_needed", "fresh_compiler")
def test_a_compiler_that_cannot_be_told(
    model: Callable[[str], LoadedModel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Layers are compiled all the same."""
    loaded, said = model("llama-llama3"), list[str]()
    want = logits(loaded, 3)
    monkeypatch.setattr(CppGemmTemplate, "prep_weight", renamed)
    compile_layers(loaded, tmp_path, said.append, backend="aot_eager")
    assert "products are left to oneDNN: it is called something else" in said
    torch.testing.assert_close(logits(loaded, 3), want, atol=2e-2, rtol=1e-2)


@pytest.mark.slow
@packs
@pytest.mark.usefixtures("no_amx_needed", "fresh_compiler")
def test_a_model_that_cannot_be_compiled_gets_its_layers_back(
    model: Callable[[str], LoadedModel], tmp_path: Path
) -> None:
    loaded = model("llama-llama3")
    want = logits(loaded, 3)
    with pytest.raises(CannotCompile):
        compile_layers(loaded, tmp_path, lambda message: None, backend=renamed)
    assert not any(isinstance(part, BlockedLinear) for part in loaded.model.modules())
    assert torch.equal(logits(loaded, 3), want)
