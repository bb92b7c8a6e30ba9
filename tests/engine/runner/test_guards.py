"""Compiled code is asked whether it suits steps of other sizes, and nothing is computed for that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from millstream_worker.engine.runner import guards
from millstream_worker.engine.runner.calls import Call, calls_of
from millstream_worker.engine.runner.guards import ask_no_more, computed, suits

pytestmark = pytest.mark.usefixtures("fresh_compiler")
TOKENS = 13


class Part(nn.Module):
    """Like a layer, it gets a tensor, and more of them by name."""

    def __init__(self, most: int | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))
        self.most = most

    def forward(
        self, hidden: torch.Tensor, *, pair: tuple[torch.Tensor, ...], mask: None = None
    ) -> torch.Tensor:
        if self.most is not None and hidden.shape[1] > self.most:
            return hidden
        return hidden @ self.weight + pair[0][..., None] * pair[1][..., None]


@torch.inference_mode()
def call(tokens: int) -> Call:
    return Call((torch.ones(1, tokens, 4),), {"pair": (torch.arange(float(tokens)), torch.ones(tokens))})


@torch.inference_mode()
def step(part: nn.Module, tokens: int) -> torch.Tensor:
    asked = call(tokens)
    answer: torch.Tensor = part(*asked.args, **asked.options)
    return answer


def of(*sizes: int) -> list[dict[int, int]]:
    return [{TOKENS: size} for size in sizes]


def compiled(part: Part) -> Callable[..., Any]:
    original = part.forward
    part.forward = torch.compile(original, backend="eager", dynamic=True, fullgraph=True)
    for tokens in (TOKENS, 1):
        step(part, tokens)
    return original


@pytest.mark.parametrize(("most", "sizes", "sure"), [
    (None, (1, 2, 100_000_000), True),
    (1000, (1, 2, 1000), True),
    (1000, (1, 2, 1001), False),
])  # fmt: skip
def test_sizes_within_and_beyond_what_the_code_was_compiled_for(
    most: int | None, sizes: tuple[int, ...], sure: bool
) -> None:
    part = Part(most)
    forward = compiled(part)
    assert suits(forward, call(TOKENS), of(*sizes)) is sure


def test_without_the_check_the_answers_stay_the_same() -> None:
    part = Part()
    want = {tokens: step(part, tokens) for tokens in (1, 2, TOKENS, 50)}
    forward = compiled(part)
    assert suits(forward, call(TOKENS), of(1, 2, 50))
    ask_no_more(sure=True)
    for _ in range(2):
        for tokens, answer in want.items():
            torch.testing.assert_close(step(part, tokens), answer)


@pytest.mark.parametrize("error", [AttributeError, TypeError])
def test_a_torch_that_does_not_tell(error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    def renamed(*args: object) -> bool:
        raise error

    part = Part()
    forward = compiled(part)
    monkeypatch.setattr(guards, "_has_code", renamed)
    assert not suits(forward, call(TOKENS), of(2))


def test_code_that_does_not_suit_after_all() -> None:
    """The step is computed, and so are those that come."""
    part = Part(most=20)
    want = step(part, 50)
    compiled(part)
    ask_no_more(sure=True)
    part.forward = torch.compile(part.forward, backend="eager", dynamic=True)
    assert torch.equal(computed(lambda: step(part, 50)), want)
    assert torch.equal(step(part, 50), want)

    def broken() -> torch.Tensor:
        raise RuntimeError("of another kind")

    with pytest.raises(RuntimeError, match="of another kind"):
        computed(broken)


def test_what_a_function_finds_around_it() -> None:
    part = Part()

    def around(rows: torch.Tensor) -> torch.Tensor:
        return rows @ part.weight

    with torch.inference_mode():
        rows = torch.ones(TOKENS, 4)
        torch.compile(around, backend="eager", dynamic=True, fullgraph=True)(rows)
    assert suits(around, Call((rows,), {}), of(2, 1000))
    assert not suits(around, Call((rows,), {}), of(1)), "nobody has compiled that"


def test_modules_that_are_called_and_those_that_are_not() -> None:
    part, other = Part(), Part()
    ((called, seen),) = calls_of([part, other], lambda: step(part, TOKENS))
    assert called is part
    assert seen.args[0].shape == (1, TOKENS, 4)
    assert seen.options.keys() == {"pair"}
    assert torch.equal(seen.answer, step(part, TOKENS))


def test_calls_come_in_order_and_each_of_them() -> None:
    part, other = Part(), Part()
    seen = calls_of([part, other], lambda: [step(one, TOKENS) for one in (other, part, other)])
    assert [module for module, _ in seen] == [other, part, other]
