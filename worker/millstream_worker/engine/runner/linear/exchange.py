"""Exchanges modules of a loaded model for others that compute the same."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

Replacement = Callable[[str, nn.Module], nn.Module | None]


def exchange(model: nn.Module, replacement: Replacement) -> None:
    """Exchange each module for which `replacement`, given its name and itself, returns another: one after the
    other, and once where several parents hold it. Its weight is freed unless others (a tied embedding) hold
    it, too."""
    exchanged: dict[nn.Module, nn.Module | None] = {}
    for place, parent in list(model.named_modules()):
        for name, module in list(parent.named_children()):
            if module not in exchanged:
                exchanged[module] = replacement(f"{place}.{name}".removeprefix("."), module)
            found = exchanged[module]
            if found is not None:
                setattr(parent, name, found.train(module.training))
                module._parameters.pop("weight", None)  # the module itself lives on in `exchanged`


def refuse_experts(model: nn.Module, weights: str) -> None:
    """Raises ValueError for a model with experts, whose weights are no layers'."""
    filters = {module.weight for module in model.modules() if isinstance(module, nn.Conv1d)}
    for name, parameter in model.named_parameters():
        if parameter.ndim > 2 and parameter not in filters:
            raise ValueError(
                f"weights {weights!r}: {name} {list(parameter.shape)} holds experts, which stay as they are "
                "in a checkpoint; use weights 'auto'"
            )
