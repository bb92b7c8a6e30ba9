"""Activations of vision towers, by our library and by transformers."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers.activations import ACT2FN

from millstream_worker.engine.runner.native.library import Library
from millstream_worker.engine.runner.vision.gates import GATES, Gate, exchange_gates

NAMES = ("gelu_pytorch_tanh", "quick_gelu", "silu")
LIBRARIES = ("library", "avx2_library", "plain_library")


@pytest.mark.parametrize("of", LIBRARIES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_gates_are_those_of_transformers(
    name: str, dtype: torch.dtype, of: str, request: pytest.FixtureRequest
) -> None:
    whole = ACT2FN[name]
    gate = Gate(request.getfixturevalue(of), *GATES[type(whole)])
    chance = torch.Generator().manual_seed(0)
    for shape in ((1,), (3, 5), (2, 7, 33), (4, 512)):
        given = (4 * torch.randn(shape, generator=chance)).to(dtype)
        expected = whole(given.double()).to(dtype)
        # in bfloat16 the last bit may differ, where a number is half-way between two
        error = {"rtol": 2**-7, "atol": 1e-6} if dtype == torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-6}
        torch.testing.assert_close(gate(given), expected, **error)
        apart = given.expand(2, *shape).movedim(0, -1)  # in another order than they lie
        torch.testing.assert_close(gate(apart)[..., 1], expected, **error)


def test_ends_of_the_range_and_what_is_no_number(library: Library) -> None:
    gate = Gate(library, *GATES[type(ACT2FN["gelu_pytorch_tanh"])])
    given = torch.tensor([-1e9, -200.0, 0.0, 200.0, 1e30, torch.inf, torch.nan])
    found = gate(given)
    assert found[:6].tolist() == pytest.approx([0.0, 0.0, 0.0, 200.0, 1e30, torch.inf])
    assert found[6].isnan()


def test_a_neighbour_and_threads_change_no_bit(library: Library) -> None:
    gate = Gate(library, 1.0, 0.1)
    given = torch.randn(3, 1000, generator=torch.Generator().manual_seed(1))
    before = torch.get_num_threads()
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            for first in (0, 1, 17):
                assert torch.equal(gate(given[1:, first:]), gate(given)[1:, first:])
    finally:
        torch.set_num_threads(before)


def test_activations_of_a_model_are_exchanged(library: Library) -> None:
    model = nn.Sequential(nn.Linear(4, 4), ACT2FN["gelu_pytorch_tanh"], nn.Sequential(nn.SiLU(), nn.Tanh()))
    given = torch.randn(2, 4)
    expected = model(given)
    exchange_gates(model, library)
    assert [type(one) for one in (model[1], model[2][0], model[2][1])] == [Gate, Gate, nn.Tanh]
    torch.testing.assert_close(model(given), expected)
