"""Steps in tensors that stay, larger than the step, with what earlier steps left in them. Run by
test_kernels.py in a process of its own."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from support.engine.attention_step import INT8, RAGGED, Lens, PrefixGroupRows, Step, spec
from torch import Tensor

from millstream_worker.engine.brain.batch.plan import Plan
from millstream_worker.engine.runner.attention.interface import StaticAttention, StaticSize
from millstream_worker.engine.runner.gpu.attention.triton_backend import TritonAttention
from millstream_worker.engine.runner.kv.layer_spec import LayerSpec

ROWS, WIDTH = 8, 64  # of the step that is held
EARLIER = Step(
    spec(dim=16), [(200, 1), (150, 1), (90, 1), (70, 1), (33, 1)], prefix_groups=[(2, (0, 1, 2))]
).plan
DECODES: Lens = [(0, 1), (37, 1), (96, 1), (70, 1)]
PREFIX_GROUPS: PrefixGroupRows = [(2, (1, 2, 3))]


def padded(tensor: Tensor, size: int) -> Tensor:
    """Tokens of another kind follow, and of no number."""
    more = tensor.new_full((size - len(tensor), *tensor.shape[1:]), torch.nan)
    return torch.cat([tensor, more])


def size_of(*, prefix_groups: bool) -> StaticSize:
    return StaticSize(ROWS, ROWS, 0, WIDTH, prefix_groups=prefix_groups)


def check(step: Step, *, prefix_groups: bool, programs: int = 4) -> None:
    check_in(size_of(prefix_groups=prefix_groups), step, programs, [EARLIER])


def check_in(size: StaticSize, step: Step, programs: int, earlier: Sequence[Plan]) -> None:
    backend = TritonAttention(step.storage, programs)
    assert isinstance(backend, StaticAttention)
    held = backend.reserve(size)
    backend.hold(held)
    for plan in (*earlier, step.plan):
        assert size.holds(plan)
        held.fill(plan)
    before = [part.clone() for part in step.storage.parts()]

    tensors = [padded(tensor, size.tokens) for tensor in (step.query, *step.new)]
    torch.use_deterministic_algorithms(True)  # what is new holds NaN then
    try:
        found = backend.attend(0, *tensors, step.sinks)
    finally:
        torch.use_deterministic_algorithms(False)

    expected = step.expected()
    assert torch.allclose(found[: len(expected)].double(), expected, atol=1e-5)
    assert not found[len(expected) :].any(), "padding is answered by zeros"
    slots = torch.from_numpy(step.plan.slot_mapping[0])
    own = slots // step.block_size, slice(None), slots % step.block_size
    for part, old in zip(step.storage.parts(), before, strict=True):
        old[own] = part[own]
        assert torch.equal(part.view(torch.uint8), old.view(torch.uint8)), "padding was stored"


@pytest.mark.parametrize("prefix_groups", [(), PREFIX_GROUPS])
@pytest.mark.parametrize("held", [True, False])
def test_rows_that_share_and_rows_that_do_not(prefix_groups: PrefixGroupRows, held: bool) -> None:
    check(Step(spec(dim=16), DECODES, prefix_groups=prefix_groups), prefix_groups=held)


@pytest.mark.parametrize(
    ("lens", "programs"),
    [
        ([(5 * row, 1) for row in range(ROWS)], 4),
        ([(40, 1)], 4),
        ([(700, 1), (3, 1), (300, 1)], 4),  # parts are as many for every length
        ([(700, 1), (3, 1), (300, 1)], 64),
    ],
)
def test_steps_of_any_size(lens: Lens, programs: int) -> None:
    check(Step(spec(dim=16), lens), prefix_groups=True, programs=programs)


@pytest.mark.parametrize(
    "layer",
    [spec(dim=16, window=9), spec(dim=16, sinks=True), spec(6, 2, 80, window=40, softcap=20.0, sinks=True)],
)
def test_every_kind_of_layer(layer: LayerSpec) -> None:
    check(Step(layer, DECODES, prefix_groups=PREFIX_GROUPS), prefix_groups=True, programs=64)


def test_a_step_that_begins_is_not_the_one_held() -> None:
    step = Step(spec(dim=16), RAGGED)
    backend = TritonAttention(step.storage)
    backend.hold(backend.reserve(size_of(prefix_groups=False)))
    step.check(backend)


MIXED = StaticSize(ROWS, 110, 4, WIDTH, prefix_groups=True)
LONG: Lens = [(700, 1), (3, 1), (600, 40)]  # cut into parts


@pytest.mark.parametrize(
    ("lens", "programs"),
    [
        ([*DECODES, (0, 70), (40, 33)], 4),
        ([(0, 90)], 64),
        (DECODES, 4),
        (LONG, 4),
        (LONG, 64),
        ([(5, 1), (0, 2), (0, 3), (9, 2), (30, 2)], 64),  # as many prompts as it holds
        ([(0, 110)], 4),  # and as many tokens
    ],
)
def test_steps_with_prompts(lens: Lens, programs: int) -> None:
    earlier = [EARLIER, Step(spec(dim=16), [(0, 40), (0, 33), (600, 33), (3, 1)]).plan]
    check_in(MIXED, Step(spec(dim=16), lens), programs, earlier)


@pytest.mark.parametrize(
    "layer",
    [
        spec(dim=16, window=9),
        spec(6, 2, 80, window=300, softcap=20.0, sinks=True),
        spec(2, 1, 16, **INT8),
    ],
)
def test_every_kind_of_layer_beside_prompts_and_prefix_groups(layer: LayerSpec) -> None:
    step = Step(layer, [*DECODES, (0, 70), (600, 20)], prefix_groups=PREFIX_GROUPS)
    check_in(MIXED, step, 64, [EARLIER])


def test_what_a_size_does_not_hold() -> None:
    assert not MIXED.holds(Step(spec(dim=16), [(0, 2)] * 5).plan), "5 prompts"
    assert not MIXED.holds(Step(spec(dim=16), [(0, 111)]).plan)
    assert not MIXED.holds(Step(spec(dim=16), [(0, 1)] * 9).plan)
    assert not MIXED.holds(Step(spec(dim=16), [(WIDTH * 16, 1)]).plan)
    assert not size_of(prefix_groups=True).holds(Step(spec(dim=16), [(0, 2)]).plan)


def test_steps_share_their_tables() -> None:
    backend = TritonAttention(Step(spec(dim=16), DECODES).storage)
    larger, smaller = (backend.reserve(size) for size in (MIXED, size_of(prefix_groups=False)))
    assert larger._tables[0].data_ptr() == smaller._tables[0].data_ptr()
