"""Damaged and unread quantised checkpoints are refused in one line, with the tensor's name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.models.checkpoints import quiet
from support.models.quantized_checkpoints import FORMATS, build_gpt_oss, build_quantized, named
from torch import Tensor

from millstream_worker.engine.runner.checkpoint.quantized.dense import open_dense
from millstream_worker.engine.runner.checkpoint.quantized.parts import UnreadWeight
from millstream_worker.engine.runner.model import weights as reading
from millstream_worker.engine.runner.model.load import load_model
from millstream_worker.engine.runner.model_config.support import UnsupportedModel

CPU = torch.device("cpu")
LAYER = "layers.1.down_proj"
STATE = f"{LAYER}.weight.quant_state.bitsandbytes__nf4"


def refusal(folder: Path) -> str:
    with quiet(), pytest.raises(UnsupportedModel) as refused:
        load_model(str(folder), dtype=torch.float32, device=CPU, attention="torch", weights="dequantized")
    assert "\n" not in str(refused.value)
    return str(refused.value)


def put(name: str, tensor: Tensor) -> Callable[[dict[str, Tensor]], Any]:
    return lambda tensors: tensors.update({name: tensor})


def drop(*names: str) -> Callable[[dict[str, Tensor]], Any]:
    return lambda tensors: [tensors.pop(name) for name in names]


def cut(name: str) -> Callable[[dict[str, Tensor]], Any]:
    return lambda tensors: tensors.update({name: tensors[name][:-1]})


def state(**fields: Any) -> Tensor:
    text = json.dumps({"shape": [64, 128], "blocksize": 64, **fields})
    return torch.tensor(list(text.encode()), dtype=torch.uint8)


DAMAGES: list[tuple[str, Callable[[dict[str, Tensor]], Any], str]] = [
    ("awq", drop(f"{LAYER}.scales"), f"{LAYER}.weight: has no {LAYER}.scales beside qweight, qzeros;"),
    ("awq", drop(f"{LAYER}.qzeros"), f"has no {LAYER}.qzeros beside"),
    ("awq", cut(f"{LAYER}.qzeros"), f"{LAYER}.qzeros is [3, 8] instead of [4, 8]"),
    ("awq", put(f"{LAYER}.pre_quant_scale", torch.ones(128)), "scales of their own (pre_quant_scale)"),
    ("awq", put(f"{LAYER}.scales", torch.ones(4)), f"{LAYER}.scales is [4], and has two sides"),
    ("gptq", drop(f"{LAYER}.scales"), f"has no {LAYER}.scales"),
    ("gptq", cut(f"{LAYER}.g_idx"), f"{LAYER}.g_idx is [127] instead of [128]"),
    (
        "gptq",
        put(f"{LAYER}.g_idx", torch.full((128,), 4, dtype=torch.int32)),
        "names a group that is none of",
    ),
    (
        "gptq",
        put(f"{LAYER}.g_idx", torch.full((128,), -1, dtype=torch.int32)),
        "names a group that is none of",
    ),
    (
        "gptq",
        put(f"{LAYER}.qzeros", torch.ones(4, 6, dtype=torch.int32)),
        "GPTQ with 3 bits is not read; 2, 4",
    ),
    ("gptq", put(f"{LAYER}.qweight", torch.ones(16, 64)), f"{LAYER}.qweight is of type F32 instead of I32"),
    ("w4a16", drop(f"{LAYER}.weight_shape"), f"has no {LAYER}.weight_shape"),
    ("w4a16", put(f"{LAYER}.weight_shape", torch.tensor([2**40, 2**40])), "pack-quantized with"),
    ("w4a16", put(f"{LAYER}.weight_shape", torch.tensor([-1, 0])), "pack-quantized with"),
    (
        "w4a16",
        put(f"{LAYER}.weight_shape", torch.tensor([2**40, 128])),
        "weight_packed is [64, 16] instead of",
    ),
    ("w4a16-zeros", cut(f"{LAYER}.weight_zero_point"), "weight_zero_point is [7, 4] instead of [8, 4]"),
    ("w8a8", drop(f"{LAYER}.weight_scale"), f"has no {LAYER}.weight_scale beside weight;"),
    ("w8a8", put(f"{LAYER}.weight_scale", torch.ones(63, 1)), "weight_scale is [63, 1] instead of [64, 1]"),
    ("w8a8", put(f"{LAYER}.weight_scale", torch.ones(64, 5)), "5 scales do not divide its 128 inputs"),
    ("fp8-blocks", drop(f"{LAYER}.weight_scale_inv"), f"has no {LAYER}.weight_scale"),
    (
        "fp8-blocks",
        put(f"{LAYER}.weight_scale_inv", torch.ones(5, 3)),
        "scales [5, 3] do not divide its [64, 128]",
    ),
    ("fp8-blocks", put(f"{LAYER}.weight_scale_inv", torch.ones(0, 3)), "scales [0, 3] do not divide"),
    (
        "fp8-rows",
        put(f"{LAYER}.weight_scale", torch.ones(64, 1).int()),
        "weight_scale is of type I32 instead of",
    ),
    ("nvfp4", drop(f"{LAYER}.weight_global_scale"), f"has no {LAYER}.weight_global_scale"),
    ("nvfp4-modelopt", drop(f"{LAYER}.weight_scale_2"), f"has no {LAYER}.weight_scale_2"),
    ("mxfp4", put(f"{LAYER}.weight_scale", torch.ones(64, 5).byte()), "5 scales of 128 inputs are not read"),
    ("nf4", drop(STATE), f"has no {STATE}"),
    ("nf4", put(STATE, torch.zeros(9).byte()), "its quant_state cannot be read"),
    ("nf4", put(STATE, torch.full((2**16,), 91).byte()), "its quant_state cannot be read: RecursionError"),
    ("nf4", put(STATE, torch.zeros(2**17).byte()), "has 131072 bytes, and may have 65536"),
    ("nf4", put(STATE, state(shape=[10**30, 10**30])), "is [4096, 1] instead of"),
    ("nf4", put(STATE, state(shape=[-64, -128])), "its quant_state says [-64, -128] in blocks of 64"),
    ("nf4", put(STATE, state(shape=[64])), "its quant_state cannot be read"),
    ("nf4", put(STATE, state(blocksize=0)), "in blocks of 0"),
    ("nf4", put(STATE, state(blocksize=1e400)), "its quant_state cannot be read"),
    ("nf4", put(f"{LAYER}.weight.quant_map", torch.ones(8)), "quant_map is [8] instead of [16]"),
    ("nf4", put(f"{LAYER}.weight.absmax", torch.ones(8)), "absmax is [8] instead of [128]"),
    ("nf4-nested", drop(f"{LAYER}.weight.nested_quant_map"), f"has no {LAYER}.weight.nested_quant_map"),
    ("w8a8", put(f"{LAYER}.SCB", torch.ones(64)), "are of no format that is read"),
]


@pytest.mark.parametrize(
    ("form", "change", "says"), DAMAGES, ids=[f"{form}-{number}" for number, (form, *_) in enumerate(DAMAGES)]
)
def test_a_damaged_weight_is_refused_by_name(
    form: str, change: Callable[[dict[str, Tensor]], Any], says: str, tmp_path: Path
) -> None:
    pack, settings, _ = FORMATS[form]
    tensors = named(f"{LAYER}.weight", pack(torch.randn(64, 128))[0])
    change(tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, tmp_path / "model.safetensors")
    with open_dense(tmp_path, settings, torch.float32, CPU) as weights:
        weight = weights[f"{LAYER}.weight"]
        with pytest.raises(UnreadWeight) as refused:
            weight.get_shape()
    said = str(refused.value)
    assert says in said
    assert said.startswith(f"{LAYER}.weight: ")
    assert "\n" not in said
    assert len(said) < 300


def test_experts_without_scales_are_refused(tmp_path: Path) -> None:
    folder, _ = build_gpt_oss(tmp_path)
    name = "model.layers.0.mlp.experts.down_proj"
    file = folder / "model.safetensors"
    tensors = load_file(file)
    del tensors[f"{name}_scales"]
    save_file(tensors, file, {"format": "pt"})
    said = refusal(folder)
    assert said.startswith(
        f"GptOssForCausalLM: {folder}: {name}: has no {name}_scales beside down_proj_blocks;"
    )


def test_codes_that_are_missing_are_a_missing_weight(tmp_path: Path) -> None:
    folder, _ = build_quantized("awq", tmp_path)
    file = folder / "model.safetensors"
    tensors = load_file(file)
    del tensors["model.layers.1.mlp.down_proj.qweight"]
    save_file(tensors, file, {"format": "pt"})
    assert "lacks 1 weights, the first is model.layers.1.mlp.down_proj.weight" in refusal(folder)


def test_memory_is_asked_before_a_quantised_weight_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what the weights become: eight times their bytes here."""
    folder, _ = build_quantized("awq", tmp_path)
    monkeypatch.setattr(reading, "free_bytes", lambda device: 2 * 10**5)
    said = refusal(folder)
    assert "its weights take 0.0 GB in float32, and 0.0 GB are free on cpu" in said
