"""The matrix products of an 8B layer: in bfloat16 as torch computes them; in float8 by torch; with weights of
4 and 8 bits by humming-kernels, if that is carried. Recorded, over weights that no cache holds."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from ops.gpu_survey.parts.timing import graph_us, median_ms
from ops.gpu_survey.survey import Survey, wait_for_quiet
from torch import Tensor

Shapes = Mapping[str, tuple[int, int]]  # out, in
LAYER: Shapes = {"qkv": (6144, 4096), "o": (4096, 4096), "gate, up": (28672, 4096), "down": (4096, 14336)}
HEAD: Shapes = {"head": (128256, 4096)}
LAYERS = 32
ROWS = (1, 16, 64, 128, 256, 1024, 8192)
_TINY: Shapes = {"one": (32, 64)}
_COLD = 160 << 20  # bytes: more than the second cache
_FP8_MOST = 448.0

Product = Callable[[Tensor, int], Tensor]  # rows, which of the weights


@dataclass(frozen=True, slots=True)
class Kind:
    """A way to multiply. `prepare`: takes weights [out, in] in bfloat16. `limit`: how far its products may be
    off, of their length."""

    name: str
    prepare: Callable[[Sequence[Tensor]], Product]
    weight_bytes: float  # a number of a weight
    limit: float


def bfloat16(survey: Survey) -> None:
    wait_for_quiet()
    kind = Kind("bf16", _bfloat16, 2.0, 0.01)
    _measure(survey, kind, ROWS)
    if not survey.tiny:
        survey.attempt("head", partial(_rates, survey, kind, (1, 256), HEAD, 1))


def float8(survey: Survey) -> None:
    """Weights quantised by row; rows one by one, in the step."""
    wait_for_quiet()
    quantise = _quantised if survey.tiny else torch.compile(_quantised, dynamic=True)
    _measure(survey, Kind("fp8, rows quantised", partial(_float8, quantise=quantise), 1.0, 0.06), ROWS)
    known: dict[int, tuple[Tensor, tuple[Tensor, Tensor]]] = {}  # with the rows, whose memory stays theirs

    def given(rows: Tensor) -> tuple[Tensor, Tensor]:
        if id(rows) not in known:
            known[id(rows)] = rows, _quantised(rows)
        return known[id(rows)][1]

    _measure(survey, Kind("fp8, product alone", partial(_float8, quantise=given), 1.0, 0.06), ROWS)


def humming(survey: Survey) -> None:
    """Needs the wheel of humming-kernels, which compiles by NVRTC."""
    survey.need_cuda()
    wait_for_quiet()
    # Its compiler is a process of its own, which finds the other half of NVRTC only so.
    folders = Path(torch.__file__).parents[1].glob("nvidia/*/lib")
    nvrtc = [str(one) for one in folders if any(one.glob("libnvrtc-builtins*"))]
    os.environ["LD_LIBRARY_PATH"] = os.pathsep.join([*nvrtc, os.environ.get("LD_LIBRARY_PATH", "")])
    for dtype, weight_bytes in (("int4", 0.53), ("int8", 1.0), ("float8e4m3", 1.0)):
        kind = Kind(f"humming {dtype}", partial(_humming, dtype=dtype), weight_bytes, 0.2)
        _measure(survey, kind, (1, 64, 256, 1024))


def _bfloat16(weights: Sequence[Tensor]) -> Product:
    return lambda rows, number: torch.nn.functional.linear(rows, weights[number])


def _float8(weights: Sequence[Tensor], quantise: Callable[[Tensor], tuple[Tensor, Tensor]]) -> Product:
    made = [(codes.t(), scale.t().contiguous()) for codes, scale in map(_quantised, weights)]

    def product(rows: Tensor, number: int) -> Tensor:
        (codes, scale), (weight, weight_scale) = quantise(rows), made[number]
        return torch._scaled_mm(
            codes,
            weight,
            scale_a=scale,
            scale_b=weight_scale,
            out_dtype=torch.bfloat16,
            use_fast_accum=True,
        )

    return product


def _quantised(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """Codes, and the scale of each row."""
    scale = (tensor.abs().amax(-1, keepdim=True).float() / _FP8_MOST).clamp(min=1e-12)
    return (tensor.float() / scale).to(torch.float8_e4m3fn), scale


def _humming(weights: Sequence[Tensor], dtype: str) -> Product:
    from humming.layer import HummingLayer

    layers = []
    for weight in weights:
        out, width = weight.shape
        config = {"dtype": dtype, "group_size": 128}
        layer = HummingLayer(shape_n=out, shape_k=width, weight_config=config, torch_dtype=torch.bfloat16)
        layer = layer.cuda()
        layer.load_from_unquantized(weight)
        layer.transform()
        layers.append(layer)

    def product(rows: Tensor, number: int) -> Tensor:
        found: Tensor = layers[number](rows)
        return found

    return product


def _measure(survey: Survey, kind: Kind, rows: Sequence[int]) -> None:
    survey.attempt(f"{kind.name}, right", partial(_right, survey, kind))
    rows, shapes = ((3,), _TINY) if survey.tiny else (rows, LAYER)
    survey.attempt(kind.name, partial(_rates, survey, kind, rows, shapes, LAYERS))


def _random(survey: Survey, *size: int) -> Tensor:
    return torch.randn(*size, device=survey.device, dtype=torch.bfloat16)


@torch.inference_mode()
def _right(survey: Survey, kind: Kind) -> str:
    """Beside float32, by length."""
    torch.manual_seed(3)
    out, width = _TINY["one"] if survey.tiny else LAYER["qkv"]
    weight, rows = _random(survey, out, width), _random(survey, 17, width)
    want = rows.float() @ weight.float().t()
    off = float((kind.prepare([weight])(rows, 0).float() - want).norm() / want.norm())
    assert off <= kind.limit, f"off by {off:.1e}, more than {kind.limit}"
    return f"off by {off:.1e}"


@torch.inference_mode()
def _rates(survey: Survey, kind: Kind, rows: Sequence[int], shapes: Shapes, layers: int) -> str:
    """Of one layer, and of all."""
    numbers = sum(out * width for out, width in shapes.values())
    made = {}
    for name, (out, width) in shapes.items():
        copies = 1 if survey.tiny else max(2, -(-_COLD // int(out * width * kind.weight_bytes)))
        made[name] = kind.prepare([_random(survey, out, width) for _ in range(copies)]), copies
    found = {}
    for count in rows:
        times = {}
        for name, (_, width) in shapes.items():
            times[name] = _product_us(survey, *made[name], _random(survey, count, width))
        us = sum(times.values())
        found[count] = layers * us / 1e3
        each = ", ".join(f"{name} {one:.1f}" for name, one in times.items())
        tflops, tbytes = (work * numbers / us / 1e6 for work in (2 * count, kind.weight_bytes))
        survey.found(
            f"{kind.name}, {count} rows",
            f"{each} us; {tflops:.0f} TFLOP/s, {tbytes:.2f} TB/s; all layers {found[count]:.2f} ms",
            kind=kind.name,
            rows=count,
            us={name: round(one, 2) for name, one in times.items()},
        )
    return "ms of all layers by rows: " + ", ".join(f"{count}: {ms:.2f}" for count, ms in found.items())


def _product_us(survey: Survey, product: Product, copies: int, rows: Tensor) -> float:
    for number in range(copies):
        product(rows, number)
    if survey.tiny:
        return 1e3 * median_ms(lambda: product(rows, 0), 1)
    numbers = [*range(copies)] * max(1, 12 // copies)
    return graph_us(lambda: [product(rows, number) for number in numbers]) / len(numbers)
