"""A model in two parts: the body, from token ids to hidden states, which is the same work in every step of a
size, and the head, which computes the logits that the step wants.

Where the cut is, and what the head hands to the body besides the tokens, is seen in a forward of one token.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from millstream_worker.engine.runner.graphs.recorder import CannotRecord


class Body:
    """The module under the head, as the head calls it. Its attention must answer when this is made."""

    def __init__(self, model: PreTrainedModel, attention_modules: Sequence[nn.Module]) -> None:
        self._model = model
        self._module, self._args, self._named, output = _observe(model, attention_modules)
        self._output = type(output)
        hidden: Tensor = output.last_hidden_state
        self.width = hidden.shape[-1]
        self.dtype = hidden.dtype

    def hidden(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Hidden states [T, width] of a packed step: tokens and positions [T], int64."""
        given = {"tokens": tokens[None], "positions": positions[None]}
        args = [given[arg.name] if isinstance(arg, _Given) else arg for arg in self._args]
        named = {
            name: given[arg.name] if isinstance(arg, _Given) else arg for name, arg in self._named.items()
        }
        answer: Tensor = self._module(*args, **named).last_hidden_state[0]
        return answer

    def logits(self, hidden: Tensor, wanted: Tensor | None) -> Tensor:
        """Logits [L, vocabulary] at `wanted` [L] of hidden states [T, width]; None: at all of them."""
        tokens = torch.empty(1, len(hidden), dtype=torch.int64, device=hidden.device)
        with self._answering(hidden):
            answer = self._model(
                input_ids=tokens,
                position_ids=tokens,
                use_cache=False,
                logits_to_keep=0 if wanted is None else wanted,
            )
        logits: Tensor = answer.logits[0]
        return logits

    @contextlib.contextmanager
    def _answering(self, hidden: Tensor) -> Iterator[None]:
        def forward(*_: Any, **__: Any) -> Any:
            return self._output(last_hidden_state=hidden[None])

        with _own_forward(self._module, forward):
            yield


class _Given:
    """Stands for an argument of the body that each step has its own of."""

    def __init__(self, name: str) -> None:
        self.name = name


def _observe(
    model: PreTrainedModel, attention_modules: Sequence[nn.Module]
) -> tuple[nn.Module, list[Any], dict[str, Any], Any]:
    """The outermost module that holds all attention modules, how it was called, and what it answered."""
    wanted = set(attention_modules)
    around = [
        module
        for module in model.modules()
        if module is not model and wanted < set(module.modules()) and type(module) is not nn.ModuleList
    ]
    if not around:
        raise CannotRecord("its layers are in no module of their own")
    calls: list[tuple[nn.Module, tuple[Any, ...], dict[str, Any], Any]] = []

    def note(module: nn.Module, args: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
        calls.append((module, args, named, output))

    hooks = [module.register_forward_hook(note, with_kwargs=True) for module in around]
    tokens = torch.zeros(1, 1, dtype=torch.int64, device=model.device)
    positions = torch.zeros_like(tokens)
    try:
        model(input_ids=tokens, position_ids=positions, use_cache=False, logits_to_keep=1)
    finally:
        for hook in hooks:
            hook.remove()
    module, args, named, output = calls[-1]  # the outermost ends last
    given = {id(tokens): "tokens", id(positions): "positions"}
    stood_in = [_Given(given[id(arg)]) if id(arg) in given else arg for arg in args]
    stood_in_named = {
        name: _Given(given[id(arg)]) if id(arg) in given else arg for name, arg in named.items()
    }
    _check(stood_in, stood_in_named, output)
    return module, stood_in, stood_in_named, output


def _check(args: list[Any], named: dict[str, Any], output: Any) -> None:
    everything = [*args, *named.values()]
    if sorted(arg.name for arg in everything if isinstance(arg, _Given)) != ["positions", "tokens"]:
        raise CannotRecord("its head does not hand token ids and positions on as they are")
    if any(isinstance(arg, Tensor) for arg in everything):
        raise CannotRecord("its head computes something for its layers, in every step anew")
    if not isinstance(getattr(output, "last_hidden_state", None), Tensor):
        raise CannotRecord("its layers do not answer with hidden states")


@contextlib.contextmanager
def _own_forward(module: nn.Module, forward: Any) -> Iterator[None]:
    before = vars(module).get("forward")
    module.forward = forward
    try:
        yield
    finally:
        if before is None:
            del module.forward
        else:
            module.forward = before
