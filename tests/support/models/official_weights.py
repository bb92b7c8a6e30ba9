"""Writes official_weights.safetensors: small weights as the formats' own code packs and decodes them.

    python -m support.models.official_weights AUTOAWQ_SOURCE

Needs compressed-tensors 0.20.0 and loguru beside what the tests need, and the source of AutoAWQ 0.2.9. The
tensors are <case>/<what stands beside a module's name>, and <case>/want; the metadata has the
quantization_config of each case.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

FILE = Path(__file__).with_name("official_weights.safetensors")
_OUTPUTS, _INPUTS = 24, 64
_FLOAT8 = {"num_bits": 8, "type": "float", "symmetric": True}
_INT = {"type": "int", "symmetric": True}
_FLOAT4 = {"num_bits": 4, "type": "float", "symmetric": True}
_GROUPS = {"strategy": "group", "group_size": 32}
_SCHEMES: dict[str, tuple[str, dict[str, Any]]] = {
    "fp8-channel": ("float-quantized", {**_FLOAT8, "strategy": "channel"}),
    "fp8-tensor": ("float-quantized", {**_FLOAT8, "strategy": "tensor"}),
    "fp8-block": ("float-quantized", {**_FLOAT8, "strategy": "block", "block_structure": [16, 48]}),
    "w8a8": ("int-quantized", {**_INT, "num_bits": 8, "strategy": "channel"}),
    "w8a8-zeros": ("int-quantized", {**_INT, "num_bits": 8, "strategy": "channel", "symmetric": False}),
    "w4a16": ("pack-quantized", {**_INT, **_GROUPS, "num_bits": 4}),
    "w4a16-zeros": ("pack-quantized", {**_INT, **_GROUPS, "num_bits": 4, "symmetric": False}),
    "w8a16": ("pack-quantized", {**_INT, "num_bits": 8, "strategy": "channel"}),
    "nvfp4": ("nvfp4-pack-quantized", {**_FLOAT4, "strategy": "tensor_group", "group_size": 16}),
    "mxfp4": ("mxfp4-pack-quantized", {**_FLOAT4, **_GROUPS}),
}


_Case = tuple[dict[str, Tensor], dict[str, Any]]


def compressed(form: str, arguments: dict[str, Any], weight: Tensor) -> _Case:
    """Returns the tensors of compressed-tensors' own compressor, with "want" what it makes of them."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams

    given = QuantizationArgs(**arguments)
    scheme = QuantizationScheme(targets=["Linear"], weights=given, format=form)
    compressor = BaseCompressor.get_value_from_registry(form)
    low, high, more = *_bounds(weight, arguments), {}
    if arguments["strategy"] == "tensor_group":
        more["global_scale"] = (448.0 * 6.0 / weight.abs().max()).reshape(1).float()
    scale, zero = calculate_qparams(low, high, given, **more)
    if form.startswith("mxfp4"):
        scale = torch.exp2(torch.floor(torch.log2(torch.maximum(low.abs(), high.abs()) / 6.0)) + 1)
    state = {"weight": weight, "weight_scale": scale, "weight_zero_point": zero.to(torch.int8)}
    if more:
        state["weight_global_scale"] = more["global_scale"]
    parts = dict(compressor.compress(state, scheme))
    if given.symmetric:
        parts.pop("weight_zero_point", None)
    want = compressor.decompress(dict(parts), scheme)["weight"].float()
    group = {"targets": ["Linear"], "weights": json.loads(given.model_dump_json())}
    settings = {"quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": group}}
    return {**parts, "want": want}, settings


def _bounds(weight: Tensor, arguments: dict[str, Any]) -> tuple[Tensor, Tensor]:
    match arguments["strategy"]:
        case "channel":
            return weight.amin(1, keepdim=True), weight.amax(1, keepdim=True)
        case "tensor":
            return weight.amin().reshape(1), weight.amax().reshape(1)
        case "block":
            rows, columns = arguments["block_structure"]
            padding = (0, -weight.shape[1] % columns, 0, -weight.shape[0] % rows)
            padded = torch.nn.functional.pad(weight, padding)
            blocks = padded.unflatten(1, (-1, columns)).unflatten(0, (-1, rows))
            return blocks.amin((1, 3)), blocks.amax((1, 3))
        case _:
            groups = weight.view(len(weight), -1, arguments["group_size"])
            return groups.amin(2), groups.amax(2)


def awq(source: str, weight: Tensor) -> _Case:
    """Packs as AutoAWQ's WQLinear_GEMM.from_linear does; its own packing_utils unpack, in float16."""
    file = Path(source) / "awq/utils/packing_utils.py"
    spec = importlib.util.spec_from_file_location("packing_utils", file)
    assert spec is not None
    assert spec.loader is not None
    packing = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(packing)
    groups = weight.view(len(weight), -1, 32)
    low, high = groups.amin(2), groups.amax(2)
    scales = ((high - low) / 15).half().float()
    zeros = (-low / scales).round().clamp(0, 15)
    codes = ((groups / scales[..., None]).round() + zeros[..., None]).clamp(0, 15).flatten(1)

    def words(numbers: Tensor) -> Tensor:
        packed = torch.zeros(len(numbers), numbers.shape[1] // 8, dtype=torch.int32)
        for place, output in enumerate([0, 2, 4, 6, 1, 3, 5, 7]):  # from_linear's order_map
            packed |= numbers[:, output::8].int() << (4 * place)
        return packed

    parts = {"qweight": words(codes.T), "qzeros": words(zeros.T), "scales": scales.T.half().contiguous()}
    want = packing.dequantize_gemm(parts["qweight"], parts["qzeros"], parts["scales"], 4, 32).T.float()
    return {**parts, "want": want}, {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"}


def main() -> None:
    tensors: dict[str, Tensor] = {}
    settings: dict[str, str] = {}
    weight = torch.randn(_OUTPUTS, _INPUTS, generator=torch.Generator().manual_seed(0)) * 0.1
    cases = {case: compressed(form, given, weight) for case, (form, given) in _SCHEMES.items()}
    cases["awq"] = awq(sys.argv[1], weight)
    for case, (parts, given) in cases.items():
        settings[case] = json.dumps(given)
        tensors |= {f"{case}/{part}": tensor.contiguous() for part, tensor in parts.items()}
    save_file(tensors, FILE, settings)


if __name__ == "__main__":
    main()
