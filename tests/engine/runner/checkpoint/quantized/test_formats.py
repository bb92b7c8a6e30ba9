"""Quantised checkpoints through the engine beside the dequantised model in plain transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.engine.serving import serve
from support.models.checkpoints import generate, plain, quiet
from support.models.multimodal import build_whole, whole
from support.models.quantized_checkpoints import (
    FORMATS,
    build_gpt_oss,
    build_quantized,
    float8,
    named,
    quantize,
)
from transformers import PreTrainedModel

from millstream_worker.engine.protocol.request import EngineRequest, SamplingSpec
from millstream_worker.engine.runner.checkpoint.quantized import dense as reading
from millstream_worker.engine.runner.checkpoint.quantized.dense import forms_of, open_dense
from millstream_worker.engine.runner.model.load import LoadedModel, load_model

CPU = torch.device("cpu")
FAST = {"awq"}
TIERED = [pytest.param(form, marks=() if form in FAST else pytest.mark.slow) for form in FORMATS]
PROMPTS = [[*range(5, 39)], [*range(5, 35), 7, 9], [11, 3, 70], [*range(90, 20, -1)]]


def loaded_of(folder: Path, told: list[str] | None = None) -> LoadedModel:
    with quiet():
        return load_model(
            str(folder), dtype=torch.float32, device=CPU, attention="torch", weights="dequantized",
            report=[].append if told is None else told.append,
        )  # fmt: skip


def assert_equal_to_generate(loaded: LoadedModel, reference: PreTrainedModel) -> None:
    with quiet():
        want = [generate(reference, prompt, 10) for prompt in PROMPTS]
    requests = [
        EngineRequest(handle, tuple(prompt), 10, SamplingSpec(temperature=0.0))
        for handle, prompt in enumerate(PROMPTS)
    ]
    served = serve(loaded, [*zip((0, 0, 1, 2), requests, strict=True)], blocks=45, block_size=4)
    assert [served.tokens[handle] for handle in range(len(PROMPTS))] == want
    assert len({token for row in want for token in row}) >= 10, "outputs too uniform to prove anything"


@pytest.mark.parametrize("form", FORMATS)
def test_weights_are_those_of_the_format(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_AT_ONCE", 1)  # three pieces
    pack, settings, name = FORMATS[form]
    parts, want = pack(torch.randn(96, 128, generator=torch.Generator().manual_seed(1)))
    plain_weight = torch.randn(3, 4)
    save_file(named("a.weight", parts) | {"b.weight": plain_weight}, tmp_path / "model.safetensors")
    with open_dense(tmp_path, settings, torch.float32, CPU) as weights:
        assert sorted(weights) == ["a.weight", "b.weight"]
        assert weights["a.weight"].get_shape() == list(want.shape)
        assert torch.equal(weights["a.weight"][...], want)
        assert torch.equal(weights["b.weight"][...], plain_weight)
        assert forms_of(weights) == name
    with open_dense(tmp_path, settings, torch.bfloat16, CPU) as weights:
        assert torch.equal(weights["a.weight"][...], want.bfloat16())


def test_experts_that_are_one_tensor_have_scales_each(tmp_path: Path) -> None:
    packed = [float8(torch.randn(96, 128) * size, "blocks") for size in (1, 2, 3)]
    parts = {part: torch.stack([one[part] for one, _ in packed]) for part in ("", "_scale_inv")}
    save_file(named("experts.gate_up_proj", parts), tmp_path / "model.safetensors")
    settings = FORMATS["fp8-blocks"][1]
    with open_dense(tmp_path, settings, torch.float32, CPU) as weights:
        assert torch.equal(weights["experts.gate_up_proj"][...], torch.stack([want for _, want in packed]))


@pytest.mark.parametrize("form", TIERED)
def test_tokens_are_those_of_generate(form: str, tmp_path: Path) -> None:
    folder, dense = build_quantized(form, tmp_path)
    loaded = loaded_of(folder)
    assert loaded.weights == f"float32 from {FORMATS[form][2]}"
    assert_equal_to_generate(loaded, plain(dense))


def test_experts_of_gpt_oss_are_read(tmp_path: Path) -> None:
    folder, dense = build_gpt_oss(tmp_path)
    told: list[str] = []
    loaded = loaded_of(folder, told)
    assert "reading the weights: mxfp4 become float32, 0.0 GB in all" in told
    assert loaded.weights == "float32 from mxfp4"
    for name, weight in load_file(dense / "model.safetensors").items():
        if name.endswith(("gate_up_proj", "down_proj")):
            assert torch.equal(loaded.model.get_parameter(name), weight), name
    assert_equal_to_generate(loaded, plain(dense))


@pytest.mark.slow
def test_experts_that_are_a_weight_each_are_merged(tmp_path: Path) -> None:
    folder, dense = build_quantized("fp8-blocks", tmp_path, "mixtral")
    assert_equal_to_generate(loaded_of(folder), plain(dense))


def test_a_text_half_in_fp8_has_the_tokens_of_its_whole(tmp_path: Path) -> None:
    """As Ministral-3 is published."""
    dense = build_whole("mistral3-ministral3", tmp_path)
    settings = {"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": None}
    folder, dense = quantize(dense, lambda weight: float8(weight, "tensor"), settings)
    loaded = loaded_of(folder)
    assert loaded.weights == "float32 from fp8"
    assert_equal_to_generate(loaded, whole(dense))
