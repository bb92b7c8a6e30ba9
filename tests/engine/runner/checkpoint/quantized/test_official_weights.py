"""Weights that the formats' own code has packed beside what it makes of them. The file is written by
support/models/official_weights.py, where that code is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from support.models.checkpoints import quiet
from support.models.official_weights import FILE
from support.models.quantized_checkpoints import SIZES, build, float8, quantize
from transformers import AutoModelForCausalLM, FineGrainedFP8Config

from millstream_worker.engine.runner.checkpoint.quantized.dense import open_dense
from millstream_worker.engine.runner.model.load import load_model

CPU = torch.device("cpu")
# Of a weight's largest number: AutoAWQ multiplies in float16, compressed-tensors its NVFP4 in bfloat16.
BOUNDS = {"awq": 4e-4, "nvfp4": 3e-3}
with safe_open(FILE, framework="pt") as official:
    SETTINGS = {case: json.loads(given) for case, given in sorted(official.metadata().items())}


@pytest.mark.parametrize("case", SETTINGS)
def test_weights_are_what_the_official_code_makes_of_them(case: str, tmp_path: Path) -> None:
    tensors = {
        name.removeprefix(f"{case}/"): tensor
        for name, tensor in load_file(FILE).items()
        if name.startswith(f"{case}/")
    }
    want = tensors.pop("want")
    save_file({f"a.{part}": tensor for part, tensor in tensors.items()}, tmp_path / "model.safetensors")
    with open_dense(tmp_path, SETTINGS[case], torch.float32, CPU) as weights:
        assert list(weights) == ["a.weight"]
        got = weights["a.weight"][...]
    assert got.shape == want.shape
    assert (got - want).abs().max() <= BOUNDS.get(case, 0) * want.abs().max()


def test_fp8_blocks_are_what_transformers_makes_of_them(tmp_path: Path) -> None:
    settings = {"quant_method": "fp8", "weight_block_size": [32, 32], "activation_scheme": "dynamic"}
    folder, _ = quantize(build("llama", tmp_path, **SIZES), lambda w: float8(w, "blocks", 32), settings)
    with quiet():
        official = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=torch.float32,
            quantization_config=FineGrainedFP8Config(dequantize=True, weight_block_size=(32, 32)),
        )
        model = load_model(
            str(folder), dtype=torch.float32, device=CPU, attention="torch", weights="dequantized"
        ).model
    for name in ("model.layers.1.mlp.down_proj", "model.layers.0.self_attn.o_proj"):
        rows = torch.eye(official.get_submodule(name).in_features)
        assert torch.equal(official.get_submodule(name)(rows), model.get_submodule(name)(rows)), name
