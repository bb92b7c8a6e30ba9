"""The most likely token by compiled code and without, against numpy's."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
import torch
from support.engine.planning import Segment, greedy_loads, pack

from millstream_worker.engine.runner.native.library import Library
from millstream_worker.engine.runner.sampling.native_chooser import NativeChooser, NativeGreedy
from millstream_worker.engine.runner.sampling.numpy_chooser import NumpyChooser
from millstream_worker.engine.runner.sampling.sampler import Sampler

MANY = 100  # rows, more than it begins with
DTYPES = [torch.bfloat16, torch.float32]
OTHERS = [pytest.param(name, marks=pytest.mark.slow) for name in ("plain_library", "avx2_library")]
Find = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


@pytest.fixture(params=["library", *OTHERS])
def native(request: pytest.FixtureRequest) -> NativeGreedy:
    return NativeGreedy(request.getfixturevalue(request.param))


@pytest.fixture(params=["without", "library", *OTHERS])
def find(request: pytest.FixtureRequest) -> Find:
    """By the library, and as where there is none."""
    if request.param == "without":
        return NumpyChooser().most_likely
    return NativeGreedy(request.getfixturevalue(request.param)).most_likely


def random_logits(rows: int, size: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Of few values, so that many are equal, around zero, all above it and all below it."""
    made = torch.randn(rows, size, generator=torch.Generator().manual_seed(seed))
    shift = torch.tensor([0.0, 9.0, -9.0]).repeat(rows)[:rows, None]
    return ((2 * made).round() / 2 + shift).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_it_is_the_first_of_the_highest(dtype: torch.dtype, find: Find) -> None:
    for rows, size in product((0, 1, 3, MANY), (1, 2, 63, 4095, 4096, 4097, 20_000)):
        logits = random_logits(rows, size, dtype, seed=size)
        tokens, non_finite = find(logits)
        assert tokens.tolist() == logits.float().numpy().argmax(-1).tolist(), (rows, size)
        assert not non_finite.any(), (rows, size)


@pytest.mark.parametrize("dtype", DTYPES)
def test_zeros_of_either_sign_are_equal_in_any_chunk(dtype: torch.dtype, find: Find) -> None:
    logits = torch.full((3, 10_000), -1.0, dtype=dtype)
    logits[0, [50, 9000]] = torch.tensor([-0.0, 0.0], dtype=dtype)
    logits[1, [50, 9000]] = torch.tensor([0.0, -0.0], dtype=dtype)
    logits[2, [4096, 9000]] = torch.tensor([-0.0, -0.0], dtype=dtype)

    assert find(logits)[0].tolist() == [50, 50, 4096]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("place", [0, 4095, 4096, 9999])
def test_rows_of_no_numbers_are_broken(place: int, dtype: torch.dtype, find: Find) -> None:
    logits = random_logits(9, 10_000, dtype)
    logits[1, place] = torch.nan
    logits[2, place] = torch.tensor(torch.nan).copysign(torch.tensor(-1.0)).to(dtype)
    logits[3, place] = torch.inf
    logits[4] = -torch.inf
    logits[5, place] = -torch.inf
    logits[6, place] = torch.finfo(dtype).max
    logits[7] = torch.finfo(dtype).min
    tokens, non_finite = find(logits)

    assert non_finite.tolist() == [False] + 4 * [True] + 4 * [False]
    assert tokens[5:8].tolist() == [logits[5].float().argmax(), place, 0]


def test_rows_may_lie_apart(native: NativeGreedy) -> None:
    wide = random_logits(MANY, 500, torch.bfloat16)
    part = wide[::2, :300]

    assert native.most_likely(part)[0].tolist() == part.float().numpy().argmax(-1).tolist()


def test_what_it_cannot_look_through_it_does_not_take(native: NativeGreedy) -> None:
    assert native.takes(torch.zeros(MANY, 5))
    assert not native.takes(torch.zeros(3, 5, dtype=torch.float16))
    assert not native.takes(torch.zeros(5, 3).T)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float16])
def test_a_sampler_with_it_draws_what_one_without_draws(dtype: torch.dtype, library: Library) -> None:
    logits = random_logits(4, 700, dtype)
    logits[2, 5] = torch.nan
    plan = pack([Segment(slot, [1], 3, [slot]) for slot in (3, 0, 2, 1)], 4, greedy_loads(range(4)))
    drawn = []
    for sampler in (Sampler(700, 4, "cpu", one) for one in (NumpyChooser(), NativeChooser(library))):
        for load in plan.loads:
            sampler.load(load)
        answer = sampler.collect(sampler.sample(logits, plan))
        assert answer.tokens.dtype == np.int32
        drawn.append((answer.tokens.tolist(), answer.non_finite, sampler.last_tokens.tolist()))

    assert drawn[0] == drawn[1]
    assert drawn[0][1] == (2,)


def test_an_answer_is_not_changed_by_the_next_step(library: Library) -> None:
    plan = pack([Segment(0, [1], 3, [0])], 4, greedy_loads([0]))
    sampler = Sampler(9, 1, "cpu", NativeChooser(library))
    sampler.load(plan.loads[0])
    first, second = (sampler.sample(torch.eye(9)[place : place + 1], plan) for place in (4, 7))

    assert sampler.collect(first).tokens.tolist() == [4]
    assert sampler.collect(second).tokens.tolist() == [7]
