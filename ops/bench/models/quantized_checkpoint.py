"""Checkpoints in the formats of quantised safetensors, for timing: their codes are random."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ops.bench.models.checkpoints import cache, own_name

_GROUP = 64
_GPT_OSS = {"experts": 32, "hidden": 2880, "vocab": 201088}


def quantized_checkpoint(folder: Path, form: str) -> Path:
    """The folder's model with its linear layers but the head in one of `FORMS`. Made once, and kept."""
    return _made(f"{own_name(folder)}-{form}", lambda part: _quantize(folder, form, part))


def experts_checkpoint(layers: int) -> Path:
    """So many layers of gpt-oss-20b's shape, experts in MXFP4. Made once, and kept."""
    return _made(f"gpt-oss-20b-{layers}-layers", lambda part: _write_experts(layers, part))


def _made(name: str, make: Callable[[Path], None]) -> Path:
    made = cache() / name
    if not made.exists():
        part = made.with_name(f"{made.name}.part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        make(part)
        part.replace(made)
    return made


def _quantize(folder: Path, form: str, to: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors: dict[str, Any] = {}
    for file in folder.glob("*.safetensors"):
        for name, weight in load_file(file).items():
            if name.endswith("_proj.weight"):
                module = name.removesuffix("weight")
                tensors |= {module + part: one for part, one in FORMS[form](*weight.shape)}
            else:
                tensors[name] = weight
    for file in folder.glob("*config.json"):
        shutil.copy(file, to)
    config = json.loads((to / "config.json").read_text("utf-8"))
    config["quantization_config"] = {"quant_method": form.split("-")[0], "group_size": _GROUP}
    if form.startswith("w"):
        config["quantization_config"] = {"quant_method": "compressed-tensors"}
    (to / "config.json").write_text(json.dumps(config), "utf-8")
    save_file(tensors, to / "model.safetensors", {"format": "pt"})


def _words(*shape: int) -> Any:
    import torch

    return torch.randint(-(2**31), 2**31, shape, dtype=torch.int32)


def _awq(outputs: int, inputs: int) -> Iterator[tuple[str, Any]]:
    import torch

    yield "qweight", _words(inputs, outputs // 8)
    yield "qzeros", _words(inputs // _GROUP, outputs // 8)
    yield "scales", torch.full((inputs // _GROUP, outputs), 0.003, dtype=torch.float16)


def _w4a16(outputs: int, inputs: int) -> Iterator[tuple[str, Any]]:
    import torch

    yield "weight_packed", _words(outputs, inputs // 8)
    yield "weight_scale", torch.full((outputs, inputs // _GROUP), 0.003, dtype=torch.bfloat16)
    yield "weight_shape", torch.tensor([outputs, inputs])


def _w8a8(outputs: int, inputs: int) -> Iterator[tuple[str, Any]]:
    import torch

    yield "weight", torch.randint(-127, 128, (outputs, inputs), dtype=torch.int8)
    yield "weight_scale", torch.full((outputs, 1), 0.0003, dtype=torch.float32)


FORMS: dict[str, Callable[[int, int], Iterator[tuple[str, Any]]]] = {
    "awq-int4": _awq,
    "w4a16": _w4a16,
    "w8a8": _w8a8,
}


def _write_experts(layers: int, to: Path) -> None:
    import torch
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoModelForCausalLM

    experts, hidden = _GPT_OSS["experts"], _GPT_OSS["hidden"]
    config = AutoConfig.for_model(
        "gpt_oss", num_hidden_layers=layers, num_local_experts=experts, hidden_size=hidden,
        intermediate_size=hidden, vocab_size=_GPT_OSS["vocab"], dtype="bfloat16",
    )  # fmt: skip
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    tensors: dict[str, Any] = {}
    for name, parameter in model.named_parameters():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            tensors[name] = torch.rand(parameter.shape, dtype=torch.bfloat16).mul_(0.02)
            continue
        groups = (experts, parameter.shape[2], parameter.shape[1] // 32)
        tensors[f"{name}_blocks"] = torch.randint(0, 256, (*groups, 16), dtype=torch.uint8)
        tensors[f"{name}_scales"] = torch.randint(112, 122, groups, dtype=torch.uint8)
    config.save_pretrained(to)
    written = json.loads((to / "config.json").read_text("utf-8"))
    written["quantization_config"] = {"quant_method": "mxfp4"}
    (to / "config.json").write_text(json.dumps(written), "utf-8")
    save_file(tensors, to / "model.safetensors", {"format": "pt"})
