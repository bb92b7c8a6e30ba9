"""Linear layers in panels: what they answer, whoever shares their step, and which layers become such."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from millstream_worker.engine.runner.linear.panel import PanelLinear
from millstream_worker.engine.runner.linear.replace import replace_linear_layers
from millstream_worker.engine.runner.native.library import Library

DTYPES = (torch.float32, torch.bfloat16)
SIZES = [(2, 1), (34, 48), (64, 7), (128, 513), (1100, 64), (576, 960)]  # inputs, outputs


@pytest.fixture(params=["library", pytest.param("avx2_library", marks=pytest.mark.slow)])
def used(request: pytest.FixtureRequest) -> Library:
    return request.getfixturevalue(request.param)


@pytest.fixture(params=DTYPES, ids=["float32", "bfloat16"])
def dtype(request: pytest.FixtureRequest, used: Library) -> torch.dtype:
    chosen: torch.dtype = request.param
    assert used.panels is not None
    return chosen


@pytest.fixture
def _three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def replacement_of(module: nn.Linear, library: Library) -> PanelLinear:
    assert library.panels is not None
    return PanelLinear(module.weight, module.bias, library.panels)


def layer(inputs: int, outputs: int, dtype: torch.dtype, *, bias: bool = True) -> nn.Linear:
    torch.manual_seed(inputs + outputs)
    return nn.Linear(inputs, outputs, bias=bias).to(dtype).eval()


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.usefixtures("_three_threads")
@torch.inference_mode()
def test_answers_what_linear_does(dtype: torch.dtype, used: Library, bias: bool) -> None:
    for inputs, outputs in SIZES:
        module = layer(inputs, outputs, dtype, bias=bias)
        replacement, tolerance = replacement_of(module, used), 1e-5 if dtype == torch.float32 else 1e-2
        for shape in ((inputs,), (0, inputs), (1, inputs), (2, 3, inputs), (130, inputs), (1, 700, inputs)):
            rows = torch.randn(shape).to(dtype)
            exact = functional.linear(
                rows.float(), module.weight.float(), module.bias.float() if bias else None
            )
            torch.testing.assert_close(replacement(rows).float(), exact, atol=tolerance, rtol=tolerance)
        strided = torch.randn(3, 2, inputs).to(dtype).transpose(0, 1)
        assert torch.equal(replacement(strided), replacement(strided.contiguous()))
        assert torch.equal(replacement.weight, module.weight)


@torch.inference_mode()
def test_a_row_gets_the_same_alone_and_among_many(dtype: torch.dtype, used: Library) -> None:
    """To the last bit, with one thread and with three, however the work is shared out."""
    for inputs, outputs in SIZES:
        module = layer(inputs, outputs, dtype)
        replacement = replacement_of(module, used)
        rows, before = torch.randn(700, module.in_features).to(module.weight.dtype), torch.get_num_threads()
        try:
            torch.set_num_threads(1)
            alone = torch.cat([replacement(row[None]) for row in rows])
            for threads in (1, 3):
                torch.set_num_threads(threads)
                for count in (2, 3, 4, 5, 6, 7, 120, 121, 700):
                    assert torch.equal(replacement(rows[:count]), alone[:count])
        finally:
            torch.set_num_threads(before)


def test_rows_of_another_type_or_width_are_an_error(dtype: torch.dtype, used: Library) -> None:
    replacement = replacement_of(layer(8, 4, dtype), used)
    with pytest.raises(RuntimeError, match=r"rows have 6 features, their weight \[4, 8\]"):
        replacement(torch.zeros(2, 6, dtype=dtype))
    with pytest.raises(RuntimeError, match=r"rows are torch.float64, and their weight torch"):
        replacement(torch.zeros(2, 8, dtype=torch.float64))


@pytest.mark.parametrize(("inputs", "outputs"), SIZES)
@torch.inference_mode()
def test_weights_of_float32_that_are_narrow_lie_there_as_such(
    inputs: int, outputs: int, used: Library
) -> None:
    """With the sums that they have in float32, to the last bit."""
    module = layer(inputs, outputs, torch.float32)
    module.weight.data = module.weight.bfloat16().float()
    narrow = replacement_of(module, used)
    assert narrow.panels.dtype == torch.bfloat16
    assert torch.equal(narrow.weight, module.weight)
    one_more = torch.full((1, inputs), 1 + 2**-8)  # an output whose weights are wider
    wider = nn.Linear(inputs, outputs + 1)
    wider.weight.data = torch.cat([module.weight, one_more])
    wider.bias.data = torch.cat([module.bias, torch.zeros(1)])
    wide = replacement_of(wider, used)
    assert wide.panels.dtype == torch.float32
    for count in (1, 2, 5, 11, 47, 48, 130, 700):
        rows = torch.randn(count, inputs)
        assert torch.equal(narrow(rows), wide(rows)[:, :outputs])
    with pytest.raises(RuntimeError, match=r"rows are torch.bfloat16, and their weight torch.float32"):
        narrow(rows.bfloat16())


@pytest.mark.parametrize("number", [1 + 2**-8, float("nan")])
def test_one_weight_that_is_wider_keeps_all_of_them_wide(used: Library, number: float) -> None:
    weight = torch.ones(70, 8)
    weight[69, 7] = number
    assert used.panels is not None
    assert PanelLinear(weight, None, used.panels).panels.dtype == torch.float32
    assert PanelLinear(torch.ones(70, 7), None, used.panels).panels.dtype == torch.float32  # no whole pairs


@pytest.mark.slow
@torch.inference_mode()
def test_bfloat16_is_multiplied_in_every_way(bfloat16_library: Library) -> None:
    """Each processor has its fastest way; all are right, also where tiles are not whole, and none looks at
    who shares a step."""
    for inputs, outputs in ((2, 1), (30, 33), (62, 64), (800, 31), (1602, 97), (576, 960)):
        module = layer(inputs, outputs, torch.bfloat16)
        replacement = replacement_of(module, bfloat16_library)
        rows = torch.randn(700, inputs).bfloat16()
        exact = functional.linear(rows.float(), module.weight.float(), module.bias.float())
        got = replacement(rows)
        torch.testing.assert_close(got.float(), exact, atol=1e-2, rtol=1e-2)
        for count in (0, 1, 5, 12, 15, 16, 17, 31, 32, 33, 49, 130, 600):
            assert torch.equal(replacement(rows[:count]), got[:count])


def test_pairs_of_inputs_are_whole(dtype: torch.dtype, used: Library) -> None:
    model = nn.Sequential(layer(8, 8, dtype), layer(7, 8, dtype))
    [said] = replace_linear_layers(model, used)
    if dtype == torch.float32:
        assert [type(module) for module in model] == [PanelLinear, PanelLinear]
        assert said == "linear layers: 2 native"
    else:
        assert [type(module) for module in model] == [PanelLinear, nn.Linear]
        assert said == f"linear layers: 1 native (bfloat16 {used.bfloat16_products}), 1 torch"


@pytest.mark.slow
def test_a_processor_without_wide_vectors_has_no_panels(plain_library: Library) -> None:
    assert plain_library.panels is None
    assert replace_linear_layers(nn.Sequential(nn.Linear(8, 8)), plain_library) == ("linear layers: 1 torch",)


@pytest.mark.skipif(os.environ.get("ATEN_CPU_CAPABILITY") != "avx2", reason="make avx2 holds it down")
def test_torch_onednn_and_the_compiler_are_held_down_to_avx2(compiler_defines: frozenset[str]) -> None:
    assert torch.backends.cpu.get_cpu_capability() == "AVX2"
    assert not torch.ops.mkldnn._is_mkldnn_bf16_supported()
    assert "__AVX2__" in compiler_defines
    assert "__AVX512F__" not in compiler_defines


class Copies(TorchDispatchMode):
    """Counts the numbers of each copy that is made."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.clone.default:
            self.made.append(args[0].numel())
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("size", [64, 80])
def test_a_replaced_weight_is_copied_once(size: int, dtype: torch.dtype, used: Library) -> None:
    """What lies in panels is not copied again to let go of its file; what does not, is."""
    model = nn.Sequential(layer(8, size, dtype))
    with Copies() as copies:
        replace_linear_layers(model, used)
    assert copies.made == [model[0].panels.numel(), size]
