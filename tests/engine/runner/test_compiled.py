"""A compiled model: the same tokens, one compilation for all steps, and a model that goes on without.

Most cases are traced and run as they were traced, which takes no compiler; one goes all the way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.engine.serving import Served, serve
from support.models.checkpoints import CASES, MECHANISMS
from torch._dynamo.utils import counters

from millstream_worker.engine.protocol.request import EngineRequest, SamplingSpec
from millstream_worker.engine.runner.compiled.compile import CannotCompile, compile_model
from millstream_worker.engine.runner.model.load import LoadedModel, load_model

CPU = torch.device("cpu")
Load = Callable[[str], LoadedModel]


UNTRACED = {
    "llama-dynamic": "Data-dependent branching",  # its rotary angles depend on a step's longest position
    "longcat_flash": "its layers are not the members of one list",
}
# The code of another case: configurations change numbers and what attention sees, but no line.
REPEATED = {
    *("gemma4-keys", "gemma4-wide", "gemma4_unified_text", "gpt2-inverse", "llama-linear", "llama-yarn"),
    *("mistral-full", "qwen2-window", "qwen3-yarn"),
}
# Layers that differ from those of another case in numbers, names, and the places of norms and biases.
ALIKE = {
    *("arcee", "cohere2", "cwm", "dots1", "ernie4_5", "exaone4", "flex_olmo", "gemma", "glm4", "granite"),
    *("granitemoe", "helium", "hunyuan_v1_dense", "minimax_m2", "ministral", "ministral3", "nanochat"),
    *("olmo2", "phi3", "qwen2", "qwen2_moe", "seed_oss", "solar_open", "starcoder2", "vaultgemma", "youtu"),
    *("axk1", "bitnet", "cohere2_moe", "exaone_moe", "glm4_moe_lite", "granite_swa", "granitemoe_swa"),
    *("beam", "flint", "gemma4-experts", "hy_v3", "hyperclovax", "internlm3", "iquestcoder", "mellum"),
    *("mimo_v2_flash", "persimmon"),
    *("bamba", "lfm2_moe", "lfm3", "nemotron_h", "olmo_hybrid", "qwen3_5_moe_text", "qwen3_next"),
    *("ernie4_5_moe", "glm4_moe", "granitemoeshared", "olmo3", "olmoe", "qwen3_moe"),
}
pytestmark = pytest.mark.usefixtures("fresh_compiler")


def run(loaded: LoadedModel) -> Served:
    """Rows that start and end at different times, so that steps have 1 to 24 tokens."""
    sampling = SamplingSpec(temperature=0.0, top_logprobs=0)
    requests = [
        EngineRequest(handle, tuple(range(3 + handle, 3 + handle + length)), tokens, sampling)
        for handle, (length, tokens) in enumerate([(30, 9), (1, 4), (17, 3), (7, 7)])
    ]
    return serve(loaded, [(handle * 2, request) for handle, request in enumerate(requests)], blocks=40)


def _marked(case: str) -> object:
    """What is traced only runs alone, but for one with inputs of each layer and one with states."""
    traced = case not in MECHANISMS and case not in ("gemma3n_text", "granitemoehybrid")
    return pytest.param(case, marks=[pytest.mark.alone] if traced else [])


def compilations() -> int:
    return counters["stats"]["unique_graphs"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "kinds"), [("llama", 1), ("gpt_oss", 1), ("deepseek_v3", 2), ("nemotron_h-experts", 3)]
)
def test_a_kind_of_layer_is_compiled_once(case: str, kinds: int, load: Load, tmp_path: Path) -> None:
    """Layers that differ in what their attention sees are of one kind; those with other parts, as dense and
    routed ones, are not: each kind is a graph inside of the model's."""
    found: list[int] = []

    def backend(graph: torch.fx.GraphModule, inputs: object) -> object:
        found.append(sum(isinstance(module, torch.fx.GraphModule) for module in graph.children()))
        return graph.forward

    compile_model(load(case), tmp_path, lambda message: None, backends=[backend])
    assert found == [kinds]


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [_marked(case) for case in sorted(CASES.keys() - UNTRACED - REPEATED - ALIKE)]
)
def test_the_tokens_of_every_architecture(case: str, load: Load, tmp_path: Path) -> None:
    """Compiled steps are compared with plain ones when they are made. One case of each mechanism is made into
    the operations that a compiler gets, and serves, too."""
    loaded, said, serves = load(case), list[str](), case in MECHANISMS

    compile_model(loaded, tmp_path, said.append, backends=["aot_eager" if serves else "eager"])
    assert compilations() == 1
    assert said[0].startswith("compiling the model: ")
    assert said[1].startswith("model compiled in ")
    if serves:
        torch.compiler.set_stance("fail_on_recompile")  # in the middle of the work, or run uncompiled code
        got = run(loaded)
        torch.compiler.set_stance("default")
        want = run(load(case))
        assert got.tokens == want.tokens
        for handle, logprobs in want.logprobs.items():
            assert got.logprobs[handle] == pytest.approx(logprobs, abs=5e-5)
        assert compilations() == 1


@pytest.mark.slow
def test_steps_of_one_token_with_attention_of_torchs(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """Compiled code pads them: the backend gets more rows than the step has tokens."""
    loaded = load_model(str(checkpoint("llama")), dtype=torch.float32, device=CPU, attention="torch")
    want = run(loaded)
    compile_model(loaded, tmp_path, lambda message: None, backends=["aot_eager"])
    torch.compiler.set_stance("fail_on_recompile")
    assert run(loaded).tokens == want.tokens


@pytest.mark.slow
def test_a_gpu_compiles_the_body_for_one_token_and_for_more(load: Load, tmp_path: Path) -> None:
    """CUDA graphs record it, and compute the head apart."""
    want, loaded = run(load("llama")), load("llama")
    on_gpu = replace(loaded, device=torch.device("cuda"))
    compile_model(on_gpu, tmp_path, lambda message: None, backends=["aot_eager"])
    assert compilations() == 2
    torch.compiler.set_stance("fail_on_recompile")
    assert run(loaded).tokens == want.tokens


@pytest.mark.slow
def test_without_a_compiler_the_model_stays_as_it_was(load: Load, tmp_path: Path) -> None:
    want, loaded = run(load("llama")), load("llama")
    missing = torch._inductor.config.patch({"cpp.cxx": (None, "no-such-compiler")})
    with missing, pytest.raises(CannotCompile, match="no-such-compiler"):
        compile_model(loaded, tmp_path, lambda message: None)
    assert run(loaded).tokens == want.tokens


@pytest.mark.slow
@pytest.mark.parametrize("error", [AssertionError("of theirs"), AttributeError("gone"), IndexError()])
def test_whatever_a_compiler_raises(error: Exception, load: Load, tmp_path: Path) -> None:
    def broken(graph: torch.fx.GraphModule, inputs: object) -> None:
        raise error

    loaded = load("llama")
    with pytest.raises(CannotCompile):
        compile_model(loaded, tmp_path, lambda message: None, backends=[broken])
    assert run(loaded).tokens == run(load("llama")).tokens


def test_a_folder_that_cannot_be_made(load: Load, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CannotCompile, match="Not a directory"):
        compile_model(load("llama"), tmp_path / "file" / "kept", lambda message: None)


@pytest.mark.parametrize(("case", "reason"), UNTRACED.items())
def test_a_model_whose_code_cannot_be_traced_goes_on_without(
    case: str, reason: str, load: Load, tmp_path: Path
) -> None:
    want, loaded = run(load(case)), load(case)
    with pytest.raises(CannotCompile, match=reason):
        compile_model(loaded, tmp_path, lambda message: None, backends=["aot_eager"])
    assert run(loaded).tokens == want.tokens


@pytest.mark.slow
def test_code_that_computes_something_else_is_not_used(load: Load, tmp_path: Path) -> None:
    def wrong(graph: torch.fx.GraphModule, inputs: object) -> Callable[..., object]:
        return lambda *given: [part * 1.1 if part.is_floating_point() else part for part in graph(*given)]

    want, loaded = run(load("llama")), load("llama")
    with pytest.raises(
        CannotCompile, match=r"a compiled step of 1 tokens has other logits: rows are off by 0.1 "
    ):
        compile_model(loaded, tmp_path, lambda message: None, backends=[wrong])
    assert run(loaded).tokens == want.tokens


@pytest.mark.slow
@pytest.mark.parametrize(("most_tokens", "large"), [(8192, 4099), (301, 301)])
def test_code_wrong_only_in_large_steps_is_compiled_more_safely(
    most_tokens: int, large: int, load: Load, tmp_path: Path
) -> None:
    """As combined kernels of a GPU may be: the model is compiled all the same."""
    fallbacks: list[str] = []

    def wrong(graph: torch.fx.GraphModule, inputs: object) -> Callable[..., object]:
        def run(*given: object) -> object:
            longest = max(
                part.numel() for part in given if isinstance(part, torch.Tensor) and part.dim() == 1
            )
            factor = 1.1 if longest >= large else 1.0
            return [part * factor if part.is_floating_point() else part for part in graph(*given)]

        return run

    def right(graph: torch.fx.GraphModule, inputs: object) -> Callable[..., object]:
        used.append("right")
        return graph.forward

    used: list[str] = []
    loaded = replace(load("llama"), context_length=200)  # positions are those of the model
    compile_model(
        loaded,
        tmp_path,
        lambda _: None,
        most_tokens=most_tokens,
        fall_back=fallbacks.append,
        backends=[wrong, right],
    )
    assert used == ["right"]
    [reason] = fallbacks
    assert f"a compiled step of {large} tokens has other logits: rows are off by 0.1 " in reason
    torch.compiler.set_stance("fail_on_recompile")
    assert run(loaded).tokens == run(load("llama")).tokens
