"""What modules are called with, seen in a computation of their model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

Call = tuple[tuple[Any, ...], dict[str, Any]]


def calls_of(modules: Sequence[nn.Module], run: Callable[[], object]) -> dict[nn.Module, Call]:
    """The arguments that each of the modules got last while `run` computed; nothing of one that was not
    called."""
    calls: dict[nn.Module, Call] = {}

    def note(module: nn.Module, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        calls[module] = (args, options)

    hooks = [module.register_forward_pre_hook(note, with_kwargs=True) for module in modules]
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    return calls
