"""Tiny checkpoints in the formats of quantised weights, packed here by the published definitions, with the
same models in float32 as references. What the formats' own code packs is in official_weights.py."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from support.models.checkpoints import build

Parts = dict[
    str, Tensor
]  # by what a name has beside the weight's, or in place of "weight" where it begins so
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
NF4 = torch.tensor([
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023,
    1.0,
])  # fmt: skip
GROUP = 32
SIZES = {"hidden_size": 64, "intermediate_size": 128}  # words and groups of all formats divide them
_BLOCK = 48  # which divides neither


def words_of(numbers: Tensor, bits: int, axis: int) -> Tensor:
    """Packs whole numbers into int32 along an axis, the lowest bits first."""
    numbers = numbers.movedim(axis, -1).to(torch.int64)
    per = 32 // bits
    numbers = torch.nn.functional.pad(numbers, (0, -numbers.shape[-1] % per))
    shifted = numbers.unflatten(-1, (-1, per)) << (bits * torch.arange(per))
    words = shifted.sum(-1)
    words = torch.where(words >= 2**31, words - 2**32, words)
    return words.to(torch.int32).movedim(-1, axis).contiguous()


def _half(numbers: Tensor) -> Tensor:
    return numbers.half().float()


def _grouped(weight: Tensor, bits: int, group: int, *, symmetric: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Returns codes [outputs, inputs] from 0 on, scales and zeros [outputs, groups]."""
    groups = weight.unflatten(1, (-1, group))
    if symmetric:
        scales = _half(groups.abs().amax(2) * 2 / (2**bits - 1)) + 2**-14
        zeros = torch.full_like(scales, 2 ** (bits - 1))
    else:
        low = groups.amin(2).clamp(max=0)
        scales = _half((groups.amax(2).clamp(min=0) - low) / (2**bits - 1)) + 2**-14
        zeros = (-low / scales).round()
    scales = _half(scales)
    codes = (groups / scales[..., None]).round() + zeros[..., None]
    return codes.clamp(0, 2**bits - 1).flatten(1), scales, zeros


def _of_groups(codes: Tensor, scales: Tensor, zeros: Tensor) -> Tensor:
    size = codes.shape[1] // scales.shape[1]
    return (codes - zeros.repeat_interleave(size, 1)) * scales.repeat_interleave(size, 1)


def gptq(
    weight: Tensor, bits: int = 4, *, permuted: bool = False, less_one: bool = True, symmetric: bool = True
) -> tuple[Parts, Tensor]:
    order = torch.randperm(weight.shape[1]) if permuted else torch.arange(weight.shape[1])
    codes, scales, zeros = _grouped(weight[:, order], bits, GROUP, symmetric=symmetric)
    place = order.argsort()
    want = _of_groups(codes, scales, zeros)[:, place]
    stored = (zeros - 1) % 2**bits if less_one else zeros
    return {
        "qweight": words_of(codes[:, place].T, bits, 0),
        "qzeros": words_of(stored.T, bits, 1),
        "scales": scales.T.half(),
        "g_idx": (place // GROUP).int(),
    }, want


def awq(weight: Tensor) -> tuple[Parts, Tensor]:
    codes, scales, zeros = _grouped(weight, 4, GROUP, symmetric=False)
    nibbles = [0, 2, 4, 6, 1, 3, 5, 7]  # the output of each of a word's

    def words(numbers: Tensor) -> Tensor:
        return words_of(numbers.unflatten(1, (-1, 8))[..., nibbles].flatten(1), 4, 1)

    parts = {"qweight": words(codes.T), "qzeros": words(zeros.T), "scales": scales.T.half()}
    return parts, _of_groups(codes, scales, zeros)


def pack_quantized(
    weight: Tensor, bits: int = 4, group: int = GROUP, *, symmetric: bool = True, permuted: bool = False
) -> tuple[Parts, Tensor]:
    group = group or weight.shape[1]
    order = torch.randperm(weight.shape[1]) if permuted else torch.arange(weight.shape[1])
    codes, scales, zeros = _grouped(weight[:, order], bits, group, symmetric=symmetric)
    place = order.argsort()
    parts = {
        "_packed": words_of(codes[:, place], bits, 1),
        "_scale": scales.bfloat16(),
        "_shape": torch.tensor(weight.shape),
    }
    if not symmetric:
        parts["_zero_point"] = words_of(zeros, bits, 0)
    if permuted:
        parts["_g_idx"] = (place // group).int()
    return parts, _of_groups(codes, scales.bfloat16().float(), zeros)[:, place]


def int_quantized(weight: Tensor, *, symmetric: bool = True) -> tuple[Parts, Tensor]:
    codes, scales, zeros = _grouped(weight, 8, weight.shape[1], symmetric=symmetric)
    parts = {"": (codes - 128).to(torch.int8), "_scale": scales}
    if not symmetric:
        parts["_zero_point"] = (zeros - 128).to(torch.int8)
    return parts, _of_groups(codes, scales, zeros)


def float8(weight: Tensor, kind: str, block: int = _BLOCK) -> tuple[Parts, Tensor]:
    rows, columns = {
        "blocks": (block, block), "tensor": tuple(weight.shape), "rows": (1, weight.shape[1]), "mx": (1, 32)
    }[kind]  # fmt: skip
    outputs, inputs = weight.shape
    padded = torch.nn.functional.pad(weight, (0, -inputs % columns, 0, -outputs % rows))
    blocks = padded.unflatten(1, (-1, columns)).unflatten(0, (-1, rows))  # [a, rows, b, columns]
    scales = blocks.abs().amax((1, 3)) / 448
    if kind == "mx":
        exponents = scales.log2().ceil()
        scales, stored = exponents.exp2(), (exponents + 127).to(torch.uint8)
    else:
        stored = scales.reshape(()) if kind == "tensor" else scales
    codes = (blocks / scales[:, None, :, None]).to(torch.float8_e4m3fn)
    want = (codes.float() * scales[:, None, :, None]).flatten(2).flatten(0, 1)[:outputs, :inputs]
    name = "_scale_inv" if kind in ("blocks", "tensor") else "_scale"
    parts = {"": codes.flatten(2).flatten(0, 1)[:outputs, :inputs].contiguous(), name: stored}
    return parts | {"activation_scale": torch.tensor(1.0), "input_scale": torch.tensor(1.0)}, want


def float4(weight: Tensor, kind: str) -> tuple[Parts, Tensor]:
    """`kind`: mxfp4 | nvfp4 | modelopt."""
    groups = weight.unflatten(1, (-1, 32 if kind == "mxfp4" else 16))
    if kind == "mxfp4":
        exponents = groups.abs().amax(2).log2().floor() - 2
        scales, parts = exponents.exp2(), {"_scale": (exponents + 127).to(torch.uint8)}
    else:
        second = weight.abs().max() / (6 * 448)
        first = (groups.abs().amax(2) / 6 / second).to(torch.float8_e4m3fn)
        parts = {"_scale": first}
        if kind == "modelopt":
            scales = first.float() * second
            parts |= {"_scale_2": second, "input_scale": torch.tensor(0.1)}
        else:
            whole = (1 / second).reshape(1)
            scales = first.float() / whole
            parts |= {"_global_scale": whole, "input_global_scale": torch.ones(1)}
    codes = ((groups / scales[..., None])[..., None] - E2M1).abs().argmin(-1)
    want = (E2M1[codes] * scales[..., None]).flatten(1)
    codes = codes.flatten(1).to(torch.uint8)
    packed = codes[:, 0::2] | codes[:, 1::2] << 4
    return parts | {"" if kind == "modelopt" else "_packed": packed}, want


def four_bits(weight: Tensor, *, nested: bool = False) -> tuple[Parts, Tensor]:
    """bitsandbytes' nf4."""
    flat = weight.flatten().view(-1, 64)
    most = flat.abs().amax(1)
    state: dict[str, Any] = {"quant_type": "nf4", "blocksize": 64, "shape": list(weight.shape)}
    parts: Parts = {".absmax": most}
    if nested:
        offset, table = float(most.mean()), torch.linspace(-1, 1, 256)
        centred = (most - offset).view(-1, 16)
        outer = centred.abs().amax(1)
        codes = ((centred / outer[:, None]).flatten()[:, None] - table).abs().argmin(-1)
        most = table[codes] * outer.repeat_interleave(16) + offset
        state |= {"nested_blocksize": 16, "nested_offset": offset}
        parts = {".absmax": codes.to(torch.uint8), ".nested_absmax": outer, ".nested_quant_map": table}
    codes = ((flat / most[:, None])[..., None] - NF4).abs().argmin(-1).to(torch.uint8)
    want = (NF4[codes.int()] * most[:, None]).view(weight.shape)
    codes = codes.flatten()
    text = torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)
    packed = (codes[0::2] << 4 | codes[1::2])[:, None]
    return parts | {"": packed, ".quant_map": NF4.clone(), ".quant_state.bitsandbytes__nf4": text}, want


def experts_float4(weight: Tensor) -> tuple[Parts, Tensor]:
    """gpt-oss' experts [experts, inputs, outputs]; decoded by transformers."""
    groups = weight.transpose(1, 2).unflatten(2, (-1, 32))
    exponents = groups.abs().amax(3).log2().floor() - 2
    codes = ((groups / exponents.exp2()[..., None])[..., None] - E2M1).abs().argmin(-1).to(torch.uint8)
    blocks = codes[..., 0::2] | codes[..., 1::2] << 4
    scales = (exponents + 127).to(torch.uint8)
    want = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    return {"_blocks": blocks.contiguous(), "_scales": scales}, want


def _compressed(form: str, **weights: Any) -> dict[str, Any]:
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": groups}


_GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": GROUP}

# Name of a case: what quantises one weight, the quantization_config, and the format's name.
Pack = Callable[[Tensor], tuple[Parts, Tensor]]
FORMATS: dict[str, tuple[Pack, dict[str, Any], str]] = {
    "awq": (awq, {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm"}, "awq-int4"),
    "gptq": (gptq, _GPTQ, "gptq-int4"),
    "gptq-8": (lambda w: gptq(w, 8), _GPTQ | {"bits": 8}, "gptq-int8"),
    "gptq-2": (lambda w: gptq(w, 2), _GPTQ | {"bits": 2}, "gptq-int2"),
    "gptq-zeros": (lambda w: gptq(w, symmetric=False), _GPTQ, "gptq-int4"),
    "gptq-order": (lambda w: gptq(w, permuted=True), _GPTQ | {"desc_act": True}, "gptq-int4"),
    "gptq-v2": (
        lambda w: gptq(w, less_one=False, symmetric=False),
        _GPTQ | {"checkpoint_format": "gptq_v2"}, "gptq-int4",
    ),
    "w4a16": (pack_quantized, _compressed("pack-quantized", num_bits=4, group_size=GROUP), "w4a16"),
    "w4a16-zeros": (
        lambda w: pack_quantized(w, symmetric=False), _compressed("pack-quantized"), "w4a16",
    ),
    "w4a16-order": (
        lambda w: pack_quantized(w, permuted=True), _compressed("pack-quantized", group_size=GROUP), "w4a16",
    ),
    "w8a16": (lambda w: pack_quantized(w, 8, 0), _compressed("pack-quantized", num_bits=8), "w8a16"),
    "w8a8": (int_quantized, _compressed("int-quantized", num_bits=8), "w8a8"),
    "w8a8-zeros": (
        lambda w: int_quantized(w, symmetric=False), _compressed("int-quantized", num_bits=8), "w8a8",
    ),
    "fp8-blocks": (
        lambda w: float8(w, "blocks"), {"quant_method": "fp8", "weight_block_size": [_BLOCK, _BLOCK]}, "fp8",
    ),
    "fp8-tensor": (
        lambda w: float8(w, "tensor"), {"quant_method": "fp8", "weight_block_size": None}, "fp8",
    ),
    "fp8-rows": (lambda w: float8(w, "rows"), {"quant_method": "fbgemm_fp8"}, "fp8"),
    "fp8-modelopt": (
        lambda w: float8(w, "tensor"), {"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8",
    ),
    "mxfp8": (lambda w: float8(w, "mx"), {"quant_method": "mxfp8"}, "mxfp8"),
    "mxfp4": (lambda w: float4(w, "mxfp4"), _compressed("mxfp4-pack-quantized"), "mxfp4"),
    "nvfp4": (lambda w: float4(w, "nvfp4"), _compressed("nvfp4-pack-quantized"), "nvfp4"),
    "nvfp4-modelopt": (
        lambda w: float4(w, "modelopt"), {"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4",
    ),
    "nf4": (four_bits, {"quant_method": "bitsandbytes", "load_in_4bit": True}, "nf4"),
    "nf4-nested": (
        lambda w: four_bits(w, nested=True), {"quant_method": "bitsandbytes", "load_in_4bit": True}, "nf4",
    ),
}  # fmt: skip


def build_quantized(form: str, folder: Path, case: str = "llama", **overrides: Any) -> tuple[Path, Path]:
    """Writes a case's checkpoint with its linear layers quantised, and the same model in float32. Returns
    both folders."""
    pack, settings, _ = FORMATS[form]
    return quantize(build(case, folder, **{**SIZES, **overrides}), pack, settings)


def build_gpt_oss(folder: Path) -> tuple[Path, Path]:
    """The same of gpt-oss with experts in MXFP4."""
    dense = build("gpt_oss", folder, **SIZES)
    return quantize(dense, experts_float4, {"quant_method": "mxfp4"}, ("gate_up_proj", "down_proj"))


def named(name: str, parts: Parts) -> dict[str, Tensor]:
    """Returns the tensors of a weight by their names in a checkpoint."""
    module = name.removesuffix("weight")
    return {
        name + part if part[:1] in ("", "_", ".") else module + part: tensor.contiguous()
        for part, tensor in parts.items()
    }


def quantize(
    dense: Path, pack: Pack, settings: dict[str, Any], ends: tuple[str, ...] = ("_proj.weight",)
) -> tuple[Path, Path]:
    """Quantises a checkpoint's weights whose names end so; in `dense` they become what is left of them."""
    folder = dense.with_name(f"{dense.name}-quantized")
    shutil.copytree(dense, folder)
    weights, stored = load_file(dense / "model.safetensors"), {}
    torch.manual_seed(3)
    for name, weight in list(weights.items()):
        if not name.endswith(ends) or "vision" in name:
            stored[name] = weight
            continue
        parts, weights[name] = pack(weight.float())
        stored |= named(name, parts)
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    weights = {name: weight.contiguous() for name, weight in weights.items()}
    save_file(weights, dense / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": settings}))
    return folder, dense
