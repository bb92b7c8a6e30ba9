"""The part of a model from token ids to hidden states, which is the same work whatever is asked of them.

Where the cut is, and what the rest of the model hands to the body besides the tokens, the anatomy says.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from millstream_worker.engine.runner.model.anatomy import Argument, BodyCall


class CannotCut(Exception):
    """Body and head of this model cannot be computed apart; the message says why."""


class Body:
    """The module under the head, as the head calls it. Raises CannotCut."""

    def __init__(self, call: BodyCall | None) -> None:
        if call is None:
            raise CannotCut("its layers are in no module of their own")
        everything = [*call.args, *call.options.values()]
        given = [arg for arg in everything if isinstance(arg, Argument)]
        handed = {Argument.OTHER, Argument.WANTED}
        if sorted(arg.name for arg in given if arg not in handed) != ["POSITIONS", "TOKENS"]:
            raise CannotCut("its head does not hand token ids and positions on as they are")
        if Argument.OTHER in given:
            raise CannotCut("its head computes something for its layers, in every step anew")
        if call.width is None:
            raise CannotCut("its layers do not answer with hidden states")
        self.call = call
        named: list[tuple[int | str, Any]] = [*enumerate(call.args), *call.options.items()]
        self.tokens = next(name for name, arg in named if arg is Argument.TOKENS)  # number or name
        self.width = call.width
        self.dtype = call.dtype

    def __call__(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Returns hidden states [T, width] of a packed step: tokens and positions [T], int64."""
        return self._states(tokens[None], positions, {})

    def of_embeddings(self, embeddings: Tensor, positions: Tensor) -> Tensor:
        """Returns hidden states [T, width] of what stands for a step's tokens: embeddings [T, size]."""
        return self._states(None, positions, {"inputs_embeds": embeddings[None]})

    def _states(self, tokens: Tensor | None, positions: Tensor, more: dict[str, Tensor]) -> Tensor:
        def own(arg: Any) -> Any:
            if arg is Argument.TOKENS:
                return tokens
            if arg is Argument.WANTED:  # all: which of them the head is asked for is its own affair
                return torch.arange(len(positions), device=positions.device)
            return positions[None] if arg is Argument.POSITIONS else arg

        call = self.call
        options = {name: own(option) for name, option in call.options.items()} | more
        hidden: Tensor = call.module(*map(own, call.args), **options).last_hidden_state[0]
        return hidden
