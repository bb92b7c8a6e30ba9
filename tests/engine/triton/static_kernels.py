"""Decode steps in tensors that stay, larger than the step, with what earlier steps left in them. Run by
test_kernels.py in a process of its own."""

from __future__ import annotations

import pytest
import torch
from support.engine.attention_step import RAGGED, Lens, PrefixGroupRows, Step, spec
from torch import Tensor

from millstream_worker.engine.runner.attention.interface import StaticAttention
from millstream_worker.engine.runner.attention.triton.triton_backend import TritonAttention
from millstream_worker.engine.runner.kv.layer_spec import LayerSpec

ROWS, WIDTH = 8, 64  # of the step that is held
EARLIER = Step(
    spec(dim=16), [(200, 1), (150, 1), (90, 1), (70, 1), (33, 1)], prefix_groups=[(2, (0, 1, 2))]
).plan
DECODES: Lens = [(0, 1), (37, 1), (96, 1), (70, 1)]
PREFIX_GROUPS: PrefixGroupRows = [(2, (1, 2, 3))]


def padded(tensor: Tensor) -> Tensor:
    """Rows of another kind follow, and of no number."""
    more = tensor.new_full((ROWS - len(tensor), *tensor.shape[1:]), torch.nan)
    return torch.cat([tensor, more])


def check(step: Step, *, prefix_groups: bool, programs: int = 4) -> None:
    backend = TritonAttention(step.storage, programs)
    assert isinstance(backend, StaticAttention)
    held = backend.reserve(ROWS, WIDTH, prefix_groups=prefix_groups)
    backend.hold(held)
    held.fill(EARLIER)
    held.fill(step.plan)
    before = step.storage.keys[0].clone()

    found = backend.attend(0, padded(step.query), *map(padded, step.new), step.sinks)

    expected = step.expected()
    assert torch.allclose(found[: len(expected)].double(), expected, atol=1e-5)
    slots = torch.from_numpy(step.plan.slot_mapping[0])
    size = step.block_size
    before[slots // size, :, slots % size] = step.storage.keys[0][slots // size, :, slots % size]
    assert torch.equal(step.storage.keys[0].nan_to_num(7.0), before.nan_to_num(7.0)), "padding was stored"


@pytest.mark.parametrize("prefix_groups", [(), PREFIX_GROUPS])
@pytest.mark.parametrize("held", [True, False])
def test_rows_that_share_and_rows_that_do_not(prefix_groups: PrefixGroupRows, held: bool) -> None:
    check(Step(spec(dim=16), DECODES, prefix_groups=prefix_groups), prefix_groups=held)


@pytest.mark.parametrize("programs", [4, 64])
def test_parts_are_as_many_for_every_length(programs: int) -> None:
    check(Step(spec(dim=16), [(700, 1), (3, 1), (300, 1)]), prefix_groups=True, programs=programs)


@pytest.mark.parametrize(
    "layer",
    [spec(dim=16, window=9), spec(dim=16, sinks=True), spec(6, 2, 80, window=40, softcap=20.0, sinks=True)],
)
def test_every_kind_of_layer(layer: LayerSpec) -> None:
    check(Step(layer, DECODES, prefix_groups=PREFIX_GROUPS), prefix_groups=True, programs=64)


def test_a_full_step_and_a_step_of_one() -> None:
    check(Step(spec(dim=16), [(5 * row, 1) for row in range(ROWS)]), prefix_groups=False)
    check(Step(spec(dim=16), [(40, 1)]), prefix_groups=True)


def test_a_step_that_begins_is_not_the_one_held() -> None:
    step = Step(spec(dim=16), RAGGED)
    backend = TritonAttention(step.storage)
    backend.hold(backend.reserve(ROWS, WIDTH, prefix_groups=False))
    step.check(backend)
