"""Linear layers of whole numbers: what they answer, whoever shares their step."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch.nn import functional

from millstream_worker.engine.runner.linear.quantized_layers import (
    QuantizedEmbedding,
    QuantizedLinear,
    rounded_rows,
    without_rounding,
)
from millstream_worker.engine.runner.native.library import Library
from millstream_worker.engine.runner.quantization.codes import Codes, OutOfRange, pack, quantize

DTYPES = (torch.float32, torch.bfloat16)
SIZES = [(2, 1), (48, 48), (64, 7), (1100, 64), (576, 200)]  # inputs, outputs
KINDS = ["int8", "int8 of 16", "int8 with offsets", "int4", "int4 with offsets"]


OTHERS = ("avx2_library", "vnni_library", "tiles_library")


@pytest.fixture(params=["library", *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def used(request: pytest.FixtureRequest) -> Library:
    chosen: Library = request.getfixturevalue(request.param)
    assert chosen.multiply_codes
    return chosen


def weight_of(kind: str, inputs: int, outputs: int) -> Codes:
    """With every code, the least and the largest included."""
    torch.manual_seed(inputs + outputs)
    group, least, most = 16 if "16" in kind else 32, -128, 128
    if "int4" in kind:
        least, most = 0, 16
    codes = torch.randint(least, most, (outputs, inputs), dtype=torch.int64)
    groups = -(-inputs // 32) * 32 // group
    scales = torch.rand(outputs, groups) / 50 + 0.001
    offsets = torch.randn(outputs, groups) / 20 if "offsets" in kind else None
    return pack(codes.to(torch.uint8 if "int4" in kind else torch.int8), scales, offsets)


def exact(rows: torch.Tensor, weight: Codes, bias: torch.Tensor | None) -> torch.Tensor:
    return functional.linear(
        rounded_rows(rows).double(), weight.dequantized().double(), None if bias is None else bias.double()
    )


@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_answers_the_product_of_rounded_rows(used: Library, kind: str) -> None:
    for (inputs, outputs), dtype in product(SIZES, DTYPES):
        weight, bias = weight_of(kind, inputs, outputs), torch.randn(outputs).to(dtype)
        layer = QuantizedLinear(weight, bias, dtype, used)
        tolerance = 2e-5 if dtype == torch.float32 else 1e-2
        for shape in ((inputs,), (0, inputs), (1, inputs), (2, 3, inputs), (67, inputs), (1, 600, inputs)):
            rows = torch.randn(shape).to(dtype)
            want = exact(rows, weight, bias)
            allowed = tolerance * (1 + want.abs().max().item() if want.numel() else 1)
            torch.testing.assert_close(layer(rows).double(), want, atol=allowed, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_a_row_gets_the_same_alone_and_among_many(used: Library, kind: str, one_thread: None) -> None:
    """To the last bit, at each place in 1 to 64 rows, and with any number of threads: these quantise rows
    together where there are few outputs, and each for itself."""
    for (inputs, outputs), dtype in product([(80, 50), (320, 400)], DTYPES):
        layer = QuantizedLinear(weight_of(kind, inputs, outputs), torch.randn(outputs).to(dtype), dtype, used)
        rows = torch.randn(700, inputs).to(dtype) * torch.logspace(-3, 3, 700)[:, None].to(dtype)
        alone = torch.cat([layer(row[None]) for row in rows])
        for threads, counts in ((1, (*range(1, 65), 513, 700)), (3, (1, 2, 5, 16, 33, 64, 513, 700))):
            torch.set_num_threads(threads)
            for count in counts:
                assert torch.equal(layer(rows[-count:]), alone[-count:])


@torch.inference_mode()
def test_what_is_no_number_stays_none(used: Library) -> None:
    layer = QuantizedLinear(quantize(torch.randn(20, 64)), None, torch.float32, used)
    rows = torch.randn(4, 64)
    rows[1, 3], rows[2, 40] = torch.nan, -torch.inf
    assert torch.equal(torch.isfinite(layer(rows)).all(-1), torch.tensor([True, False, False, True]))
    assert torch.equal(layer(torch.zeros(1, 64)), torch.zeros(1, 20))


@torch.inference_mode()
def test_the_fallback_without_the_library_gives_equal_answers(used: Library) -> None:
    for kind, dtype in product(KINDS, DTYPES):
        weight, bias = weight_of(kind, 576, 200), torch.randn(200).to(dtype)
        rows = torch.randn(9, 576).to(dtype)
        native, plain = (QuantizedLinear(weight, bias, dtype, library)(rows) for library in (used, None))
        tolerance = 1e-4 if dtype == torch.float32 else 1e-2
        torch.testing.assert_close(native, plain, rtol=tolerance, atol=tolerance * plain.abs().max().item())


@pytest.mark.parametrize("kind", KINDS)
def test_an_embedding_looks_up_rows_of_the_weight(kind: str) -> None:
    for inputs, outputs in SIZES:
        weight = weight_of(kind, inputs, outputs)
        tokens = torch.arange(outputs).reshape(1, -1)
        for dtype in DTYPES:
            assert torch.equal(QuantizedEmbedding(weight, dtype)(tokens)[0], weight.dequantized(dtype))


def test_quantising_rounds_to_the_nearest_code() -> None:
    weight = torch.randn(2050, 100)
    codes = quantize(weight)
    off = (codes.dequantized() - weight).abs()
    step = weight.abs().amax() / 127
    assert off.max() <= 0.51 * step
    assert codes.codes.nbytes + codes.scales.nbytes <= 8.5 / 8 * 2064 * 128
    assert torch.equal(quantize(codes.dequantized()).codes, codes.codes)
    assert torch.equal(quantize(torch.zeros(3, 5)).dequantized(), torch.zeros(3, 5))


def test_rows_of_another_type_or_width_are_an_error(used: Library) -> None:
    layer = QuantizedLinear(quantize(torch.randn(4, 8)), None, torch.float32, used)
    with pytest.raises(RuntimeError, match=r"rows have 6 features, their weight \[4, 8\]"):
        layer(torch.zeros(2, 6))
    with pytest.raises(RuntimeError, match=r"rows are torch.float64, and their layer torch.float32"):
        layer(torch.zeros(2, 8, dtype=torch.float64))


@torch.inference_mode()
def test_rows_can_be_multiplied_as_they_are(used: Library) -> None:
    """To compare a model with its compiled code."""
    weight, rows = weight_of("int4 with offsets", 576, 200), torch.randn(9, 576)
    layer = QuantizedLinear(weight, None, torch.float32, used)
    before = layer(rows)
    with without_rounding():
        exactly = layer(rows)
    torch.testing.assert_close(exactly, functional.linear(rows, weight.dequantized()), rtol=1e-4, atol=1e-4)
    assert torch.equal(layer(rows), before)
    assert not torch.equal(exactly, before)


@pytest.mark.parametrize(
    ("weight", "reason"),
    [
        (torch.eye(40) * 65504 * 128, "8.38e.06 is beyond scales of float16"),
        (torch.eye(40) * torch.inf, "nan is beyond scales of float16, or no number"),
        (torch.eye(40) * 1e-6, "numbers of a norm of 6.32e-06 are too small for scales of float16"),
    ],
)
def test_scales_that_float16_does_not_hold_are_refused(weight: torch.Tensor, reason: str) -> None:
    with pytest.raises(OutOfRange, match=reason):
        quantize(weight)


def test_scales_up_to_the_ends_of_float16_are_held() -> None:
    for factor in (65504 * 127, 1e-4):
        weight = torch.eye(40) * factor
        torch.testing.assert_close(quantize(weight).dequantized(), weight, rtol=0.025, atol=0)
