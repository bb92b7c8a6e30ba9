"""What modules are called with and answer, seen in a computation of their model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    args: tuple[Any, ...]
    options: dict[str, Any]
    answer: Any = None


def calls_of(modules: Sequence[nn.Module], run: Callable[[], object]) -> list[tuple[nn.Module, Call]]:
    """The calls that the modules got while `run` computed, in the order of their answers."""
    calls: list[tuple[nn.Module, Call]] = []

    def note(module: nn.Module, args: tuple[Any, ...], options: dict[str, Any], answer: Any) -> None:
        calls.append((module, Call(args, options, answer)))

    hooks = [module.register_forward_hook(note, with_kwargs=True) for module in modules]
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    return calls
