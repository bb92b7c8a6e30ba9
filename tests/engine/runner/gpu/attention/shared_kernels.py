"""Rows that begin with the same blocks and read them together: against plain attention in float64. Run by
test_kernels.py, as kernels.py is."""

from __future__ import annotations

import pytest
import torch
from support.engine.attention_step import DTYPES, Lens, PrefixGroupRows, Step, spec
from support.engine.planning import sharing

from millstream_worker.engine.runner.gpu.attention.step_layout import StepLayout
from millstream_worker.engine.runner.gpu.attention.triton_backend import TritonAttention
from millstream_worker.engine.runner.kv.layer_spec import LayerSpec

LENS: Lens = [(70, 1), (33, 1), (55, 1), (32, 1), (7, 1), (20, 3)]
PREFIX_GROUPS: PrefixGroupRows = [(3, (2, 0)), (2, (1, 3))]  # rows 4 and 5 read alone
SMALL = spec(2, 1, 16)


def shared(
    layer: LayerSpec, lens: Lens = LENS, prefix_groups: PrefixGroupRows = PREFIX_GROUPS, programs: int = 1
) -> Step:
    """Checked; with parts as on a device that wants so many programs."""
    step = Step(layer, lens, prefix_groups=prefix_groups)
    check(step, programs)
    return step


def shared_parts(step: Step, programs: int) -> list[list[int]]:
    layout = StepLayout(step.layer, step.storage.dtype.itemsize, programs)
    return layout.arrays(step.plan)[0]["shared_parts"].tolist()


def check(step: Step, programs: int = 1, error: float | None = None) -> TritonAttention:
    backend = TritonAttention(step.storage, programs)
    step.check(backend, error)
    return backend


@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 2), (6, 2), (5, 1), (33, 1), (66, 1)])
def test_grouped_query_heads(heads: int, kv_heads: int) -> None:
    """From 64 rows a tile down to one."""
    shared(spec(heads, kv_heads, 16), [(16, 1), (17, 1)], [(1, (0, 1))])


@pytest.mark.parametrize(
    "layer",
    [
        *(spec(2, 1, dim) for dim in (64, 80, 112, 128, 256)),
        spec(2, 1, 48, value_dim=16),
        spec(4, 2, 16, sinks=True),
        spec(3, 1, 24, sinks=True, value_dim=40),
        spec(2, 1, 24, softcap=5.0, sinks=True),
    ],
    ids=str,
)
def test_every_kind_of_layer(layer: LayerSpec) -> None:
    for programs in (1, 64):
        check(Step(layer, LENS, prefix_groups=PREFIX_GROUPS), programs, error=1e-5 if layer.softcap else None)


@pytest.mark.parametrize("window", [1, 60])
def test_a_layer_with_a_window_reads_alone(window: int) -> None:
    step = shared(spec(2, 1, 16, window=window))
    assert not shared_parts(step, 64)


@pytest.mark.parametrize("block_size", [1, 12, 32])
def test_block_sizes(block_size: int) -> None:
    lens = [(block_size * 3, 1), (block_size * 3 + 1, 1), (block_size * 4, 1)]
    check(Step(SMALL, lens, block_size, prefix_groups=[(3, (2, 0, 1))]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_precisions(dtype: torch.dtype) -> None:
    check(Step(spec(4, 1, 64), LENS, dtype=dtype, prefix_groups=PREFIX_GROUPS), 64)


def test_a_prefix_group_of_more_rows_than_a_tile_holds() -> None:
    layer = spec(10, 1, 16)  # three rows a tile
    lens = [(16 + row, 1) for row in range(5)]
    step = shared(layer, lens, [(1, range(5))])
    assert shared_parts(step, 1) == [[0, 3, 0, 16, 0], [3, 2, 0, 16, 0]]


@pytest.mark.parametrize("programs", [1, 8, 64])
def test_long_beginnings_are_read_in_parts(programs: int) -> None:
    """One beginning is read in several parts and the other in one; rows of no prefix group beside."""
    lens: Lens = [(1100, 1), (1040, 1), (300, 1), (600, 1), (280, 1), (3, 1)]
    step = Step(spec(2, 1, 16, sinks=True), lens, prefix_groups=[(64, (0, 1)), (17, (2, 4))])
    check(step, programs, error=1e-5)
    assert (len(shared_parts(step, programs)) > 2) == (programs > 1)


def test_a_row_whose_own_part_is_its_new_token_only() -> None:
    shared(SMALL, [(32, 1), (32, 1), (64, 1)], [(2, (0, 1, 2))])


def test_prefix_groups_change_nothing_but_who_reads() -> None:
    step = Step(SMALL, LENS, prefix_groups=PREFIX_GROUPS)
    alone = Step(SMALL, LENS, prefix_groups=PREFIX_GROUPS)
    alone.plan = sharing(alone.plan, [])
    answers = []
    for one in (step, alone):
        backend = check(one)
        answers.append(backend.attend(0, one.query, *one.new))
    assert torch.allclose(*answers, atol=3e-6)
