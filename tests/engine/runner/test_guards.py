"""Compiled code is asked whether it suits steps of other sizes, and nothing is computed for that."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from millstream_worker.engine.runner import guards
from millstream_worker.engine.runner.guards import suits

pytestmark = pytest.mark.usefixtures("fresh_compiler")
TOKENS = 13


class Part(nn.Module):
    """Like a layer, it gets a tensor, and more of them by name."""

    def __init__(self, most: int | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))
        self.most = most
        self.computed = 0

    def forward(
        self, hidden: torch.Tensor, *, pair: tuple[torch.Tensor, ...], mask: None = None
    ) -> torch.Tensor:
        if self.most is not None and hidden.shape[1] > self.most:
            return hidden
        return hidden @ self.weight + pair[0][..., None] * pair[1][..., None]


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


def step(part: nn.Module, tokens: int) -> torch.Tensor:
    sides = torch.arange(float(tokens)), torch.ones(tokens)
    answer: torch.Tensor = part(torch.ones(1, tokens, 4), pair=sides)
    return answer


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
    assert suits([(part, forward)], lambda: step(part, TOKENS), TOKENS, sizes) is sure


def test_without_the_check_the_answers_stay_the_same() -> None:
    part = Part()
    want = {tokens: step(part, tokens) for tokens in (1, 2, TOKENS, 50)}
    forward = compiled(part)
    assert suits([(part, forward)], lambda: step(part, TOKENS), TOKENS, (1, 2, 50))
    torch.compiler.set_stance("eager_on_recompile", skip_guard_eval_unsafe=True)
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
    assert not suits([(part, forward)], lambda: step(part, TOKENS), TOKENS, (2,))


def test_a_module_that_is_not_called() -> None:
    part, other = Part(), Part()
    assert not suits([(other, other.forward)], lambda: step(part, TOKENS), TOKENS, (2,))
