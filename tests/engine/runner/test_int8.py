"""Weights that are quantised to 8 bits when a model is loaded: of which, and that nothing else changes."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.engine.whole_engine import engine_on, tokens_of
from support.models.checkpoints import logits, plain
from torch import nn
from transformers.pytorch_utils import Conv1D

from millstream_worker.engine.process import CannotLoad
from millstream_worker.engine.runner.linear.quantized_layers import QuantizedLinear, rounded_rows
from millstream_worker.engine.runner.linear.replace import replace_linear_layers, weight_bytes, weight_count
from millstream_worker.engine.runner.model.load import load_model
from millstream_worker.engine.runner.quantization.codes import quantize

CPU = torch.device("cpu")


@torch.inference_mode()
def test_replaces_every_kind_and_frees_the_weights() -> None:
    class Scaled(nn.Linear):
        """Computes something else."""

    linear, conv, head = nn.Linear(8, 12), Conv1D(8, 12), nn.Linear(8, 16, bias=False)
    embedding = nn.Embedding(16, 8)
    head.weight = embedding.weight
    model = nn.ModuleList([embedding, linear, conv, Scaled(8, 8), nn.Embedding(9, 8), head])
    rows = torch.randn(3, 8)
    want = nn.functional.linear(rounded_rows(rows), quantize(linear.weight).dequantized(), linear.bias)

    [said] = replace_linear_layers(model, None, "int8", embedding)

    assert said == "linear layers: 3 int8 in float32, without native code, 1 torch"
    torch.testing.assert_close(model[1](rows), want)
    assert getattr(linear, "weight", None) is None
    assert model[0].codes is model[5].codes
    assert [type(one) for one in (model[3], model[4])] == [Scaled, nn.Embedding]
    assert weight_count(model) == 16 * 8 + 8 * 12 + 12 + 12 * 8 + 8 + 8 * 8 + 8 + 9 * 8
    codes = 16 * 32 + 16 * 2  # of a panel of 32 inputs, with its scales
    assert weight_bytes(model) == 3 * codes + 4 * (12 + 8 + 8 * 8 + 8 + 9 * 8)


def changed(folder: Path, to: Path, name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Path:
    """The checkpoint with another weight of this name."""
    shutil.copytree(folder, to)
    weights = load_file(to / "model.safetensors")
    save_file(weights | {name: change(weights[name])}, to / "model.safetensors", {"format": "pt"})
    return to


def with_outliers(weight: torch.Tensor) -> torch.Tensor:
    """What tells tokens apart is far smaller than one number of each group, which is the same for all."""
    weight = torch.randn_like(weight) / 4
    weight[:, ::16] = 400.0
    return weight


def test_a_head_that_8_bits_would_spoil_stays_as_it_is(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = changed(checkpoint("gemma2"), tmp_path / "spoilt", "model.embed_tokens.weight", with_outliers)
    loaded = load_model(str(folder), dtype=torch.float32, device=CPU, weights="int8")
    assert loaded.weights == "int8+float32"
    assert not isinstance(loaded.model.get_output_embeddings(), QuantizedLinear)
    assert isinstance(loaded.model.get_submodule("model.layers.0.mlp.down_proj"), QuantizedLinear)
    said = [note for note in loaded.notes if note.startswith("not in 8 bits: ")]
    reason = r": a KL divergence of [\d.]+ in 8 bits, the bound is 0.004"
    assert [re.sub(reason, "", one) for one in said] == ["not in 8 bits: lm_head.weight"]


def test_a_weight_beyond_float16s_scales_stays_as_it_is(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    name = "model.layers.0.mlp.down_proj.weight"
    folder = changed(checkpoint("llama"), tmp_path / "large", name, lambda weight: weight * 1e10)
    loaded = load_model(str(folder), dtype=torch.float32, device=CPU, weights="int8")
    assert loaded.weights == "int8+float32"
    [said] = [note for note in loaded.notes if note.startswith("not in 8 bits: ")]
    assert re.fullmatch(rf"not in 8 bits: {name}: \S+e\+\d+ is beyond scales of float16, or no number", said)


@pytest.mark.parametrize("case", ["llama", "llama-llama3", "gpt2", "gemma2", "phi3-longrope", "minicpm3"])
def test_logits_stay_close(case: str, checkpoint: Callable[[str], Path], one_thread: None) -> None:
    """Of a forward by the model's own code: with attention in place of ours."""
    loaded = load_model(str(checkpoint(case)), dtype=torch.float32, device=CPU, weights="int8")
    assert loaded.weights == "int8"
    assert any(isinstance(module, QuantizedLinear) for module in loaded.model.modules())
    text = list(range(3, 40))
    want = logits(plain(checkpoint(case)), text)
    loaded.model.set_attn_implementation("eager")
    got = logits(loaded.model, text)
    assert (got - want).norm() < 0.08 * want.norm()


@pytest.mark.parametrize("changes", [{"attention": "torch"}, {"kv_memory": "96KiB"}, {"prefix_cache": False}])
def test_tokens_do_not_depend_on_the_way(
    changes: dict[str, Any], checkpoint: Callable[[str], Path], one_thread: None
) -> None:
    """Nor on rows that are preempted, and on prefixes that are shared: a row gets the same in any step."""
    folder = checkpoint("llama")
    assert tokens_of(engine_on("cpu", folder, weights="int8", **changes)) == tokens_of(
        engine_on("cpu", folder, weights="int8")
    )


def test_experts_are_refused(checkpoint: Callable[[str], Path]) -> None:
    with pytest.raises(CannotLoad, match=r"weights 'int8': .*experts.* holds experts.*; use weights 'auto'"):
        engine_on("cpu", checkpoint("mixtral"), weights="int8")


def test_a_gpu_is_refused(checkpoint: Callable[[str], Path]) -> None:
    with pytest.raises(
        ValueError, match="weights 'int8' are computed on the CPU, this is cuda; use 'fp8' or 'auto'"
    ):
        load_model(str(checkpoint("llama")), dtype=torch.float32, device=torch.device("cuda"), weights="int8")


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_compiler")
def test_compiled_and_replayed_steps_give_the_same_tokens(
    checkpoint: Callable[[str], Path], own_cache: str, one_thread: None
) -> None:
    said: list[str] = []
    folder = checkpoint("llama-llama3")
    options = {"weights": "int8", "cache_dir": own_cache}
    compiled = engine_on("cpu", folder, said.append, compile_model="on", **options)
    assert "short steps are recorded and replayed" in said
    assert tokens_of(compiled) == tokens_of(engine_on("cpu", folder, **options))
