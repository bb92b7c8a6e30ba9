"""A model in two parts: the body, from token ids to hidden states, which is the same work in every step of a
size, and the head, which computes the logits that the step wants.

Where the cut is, and what the head hands to the body besides the tokens, the model's anatomy says.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from millstream_worker.engine.runner.cuda_graphs.recorder import CannotRecord
from millstream_worker.engine.runner.model.anatomy import Argument, BodyCall
from millstream_worker.engine.runner.model.load import LoadedModel


class Body:
    """The module under the head, as the head calls it. Raises CannotRecord where no cut is possible."""

    def __init__(self, loaded: LoadedModel) -> None:
        call = loaded.anatomy.body
        if call is None:
            raise CannotRecord("its layers are in no module of their own")
        _check(call)
        if call.width is None:
            raise CannotRecord("its layers do not answer with hidden states")
        self._model = loaded.model
        self._call = call
        self.width = call.width
        self.dtype = call.dtype

    def hidden(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Hidden states [T, width] of a packed step: tokens and positions [T], int64."""
        given = {Argument.TOKENS: tokens[None], Argument.POSITIONS: positions[None]}

        def own(arg: Any) -> Any:
            return given[arg] if isinstance(arg, Argument) else arg

        call = self._call
        options = {name: own(option) for name, option in call.options.items()}
        answer: Tensor = call.module(*map(own, call.args), **options).last_hidden_state[0]
        return answer

    def logits(self, hidden: Tensor, wanted: Tensor | None) -> Tensor:
        """Logits [L, vocabulary] at `wanted` [L] of hidden states [T, width]; None: at all of them."""
        tokens = torch.empty(1, len(hidden), dtype=torch.int64, device=hidden.device)

        def forward(*_: Any, **__: Any) -> Any:
            return self._call.output(last_hidden_state=hidden[None])

        with _own_forward(self._call.module, forward):
            answer = self._model(
                input_ids=tokens,
                position_ids=tokens,
                use_cache=False,
                logits_to_keep=0 if wanted is None else wanted,
            )
        logits: Tensor = answer.logits[0]
        return logits


def _check(call: BodyCall) -> None:
    """Raises CannotRecord."""
    everything = [*call.args, *call.options.values()]
    given = [arg for arg in everything if isinstance(arg, Argument)]
    if sorted(arg.name for arg in given if arg is not Argument.OTHER) != ["POSITIONS", "TOKENS"]:
        raise CannotRecord("its head does not hand token ids and positions on as they are")
    if Argument.OTHER in given:
        raise CannotRecord("its head computes something for its layers, in every step anew")


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
