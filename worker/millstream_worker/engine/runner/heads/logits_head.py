"""Computes logits of hidden states, by transformers' code."""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel


class LogitsHead:
    """The model around its `body`. It hands token ids on to that as they are, as the argument with the number
    or name `tokens`: here they are hidden states, which come back unchanged, as an `output`."""

    def __init__(self, model: PreTrainedModel, body: nn.Module, tokens: int | str, output: type) -> None:
        path = next(name for name, module in model.named_modules() if module is body)
        self._around = _with(model, path, _Given(body, tokens, output))

    def __call__(self, hidden: Tensor, wanted: Tensor | None) -> Tensor:
        logits: Tensor = self._around(
            input_ids=hidden[None],
            position_ids=hidden[None],
            use_cache=False,
            logits_to_keep=0 if wanted is None else wanted,
        ).logits[0]
        return logits


class _Given(nn.Module):
    """Stands in for the body. It has that one's numbers: some heads multiply by them."""

    def __init__(self, body: nn.Module, tokens: int | str, output: type) -> None:
        super().__init__()
        numbers = {name: value for name, value in vars(body).items() if isinstance(value, (int, float))}
        self.__dict__.update(numbers | {"training": False})
        self._tokens = tokens
        self._output = output

    def forward(self, *args: Any, **options: Any) -> Any:
        hidden = args[self._tokens] if isinstance(self._tokens, int) else options[self._tokens]
        return self._output(last_hidden_state=hidden)


def _with(module: nn.Module, path: str, stand_in: nn.Module) -> Any:
    """Returns the module with another one at `path`; all others are the same."""
    if not path:
        return stand_in
    name, _, rest = path.partition(".")
    copied = copy.copy(module)
    copied._modules = {**module._modules, name: _with(module.get_submodule(name), rest, stand_in)}
    return copied
