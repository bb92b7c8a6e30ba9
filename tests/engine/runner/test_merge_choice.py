"""Which linear layers a GPU has merged: those that were faster as one, tried once for each kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn

from millstream_worker.engine.runner import merge_choice, merged
from millstream_worker.engine.runner.anatomy import calls_of, siblings_of
from millstream_worker.engine.runner.merge_choice import Trial, merge
from millstream_worker.engine.runner.merged import MergedLinear


class Layer(nn.Module):
    """Two kinds of siblings, and a layer that has none, in bfloat16."""

    def __init__(self, *, bias: bool = False) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(8, size, bias=bias) for size in (8, 4, 4))
        self.gate, self.up = (nn.Linear(8, 12, bias=bias) for _ in range(2))
        self.down = nn.Linear(12, 8, bias=bias)
        self.bfloat16()

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        attended = self.q(rows) + torch.cat([self.k(rows), self.v(rows)], -1)
        answer: torch.Tensor = self.down(self.gate(attended) * self.up(attended))
        return answer


class Clock:
    """Seconds for each way that is timed: what its products cost, by their outputs."""

    def __init__(self, price: Callable[[int], float]) -> None:
        self.price = price
        self.ways = 0

    def __call__(self, way: Callable[[], object]) -> float:
        self.ways += 1
        answers = way()
        products = answers if isinstance(answers, list) else [answers]
        return sum(self.price(product.shape[-1]) for product in products)


def siblings(model: nn.Module) -> Sequence[Sequence[str]]:
    with torch.no_grad(), calls_of(model) as calls:
        model(torch.randn(1, 8, dtype=next(model.parameters()).dtype))
    return siblings_of(model, calls)


def merge_seen(model: nn.Module, *given: Any, **named: Any) -> int:
    return merged.merge(model, siblings(model), *given, **named)


def names(model: nn.Module) -> set[str]:
    return {name for name, module in model.named_modules() if isinstance(module, MergedLinear)}


@pytest.mark.parametrize("bias", [False, True])
@torch.no_grad()
def test_those_are_merged_that_are_faster_as_one(bias: bool) -> None:
    """Here products of more than 16 outputs are dear: gate and up stay apart."""
    model, rows = nn.Sequential(Layer(bias=bias), Layer(bias=bias)), torch.randn(3, 8).bfloat16()
    want = model(rows)
    trial = Trial(Clock(lambda outputs: 1e-5 if outputs <= 16 else 1e-3))

    assert merge_seen(model, trial.pays) == 6
    assert names(model) == {f"{layer}.{name}" for layer in (0, 1) for name in "qkv"}
    torch.testing.assert_close(model(rows), want)
    assert trial.found == [
        "linear layers of 8 to 8+4+4: apart 30 us, as one product 10 us",
        "linear layers of 8 to 12+12: apart 20 us, as one product 1000 us, left apart",
    ]


def test_a_kind_is_tried_once() -> None:
    clock = Clock(lambda outputs: 1.0)
    trial = Trial(clock)
    merge_seen(nn.Sequential(*(Layer() for _ in range(5))), trial.pays)

    assert clock.ways == 2 * 2 * merge_choice._REPEATS
    assert len(trial.found) == 2


def test_a_hair_is_no_reason() -> None:
    trial = Trial(Clock(lambda outputs: 0.99 if outputs > 12 else 0.5 if outputs == 12 else 0.33))

    assert merge_seen(Layer(), trial.pays) == 0


def test_float32_stays_as_it_is_whatever_a_clock_says() -> None:
    """A start that merged, and one that did not, would draw different tokens now and then."""
    trial = Trial(Clock(lambda outputs: 1.0))

    assert merge_seen(Layer().float(), trial.pays) == 0
    assert trial.found == []


def test_where_there_is_no_memory_to_try_it_stays_as_it_is() -> None:
    def full(way: Callable[[], object]) -> float:
        raise torch.OutOfMemoryError("CUDA out of memory")

    assert merge_seen(Layer(), Trial(full).pays) == 0


def test_memory_is_given_back_as_it_becomes_free() -> None:
    """Else all parts and all products would be there at a time."""
    model = nn.Sequential(Layer(), Layer())
    left = []
    merge_seen(model, freed=lambda: left.append(len(names(model))))

    assert left == [2, 5, 7, 10]


def test_on_the_cpu_all_are_merged_untried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge_choice, "Trial", None)
    model = Layer()

    assert merge(model, siblings(model), torch.device("cpu")) == []
    assert names(model) == {"q", "k", "v", "gate", "up"}
