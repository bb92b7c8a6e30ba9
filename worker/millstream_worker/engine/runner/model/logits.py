"""Computes the logits of a packed step: by transformers' code, or by what it was compiled to."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from transformers import PreTrainedModel

Function = Callable[[Tensor, Tensor, Tensor], Tensor]
FEWEST = 2  # tokens, and logits, of compiled code: it would take a size of one for a constant


class LogitsFunction:
    """Takes tokens and positions [T], and the places [L] whose logits are wanted, all int64; returns logits
    [L, vocabulary]. The model's attention modules have their storage by then."""

    __slots__ = ("_compiled", "_model")

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._compiled: Function | None = None

    @torch.inference_mode()
    def __call__(self, tokens: Tensor, positions: Tensor, wanted: Tensor) -> Tensor:
        if self._compiled is None:
            return self._logits(tokens, positions, wanted)
        count = len(wanted)
        return self._compiled(_padded(tokens), _padded(positions), _padded(wanted))[:count]

    def compile(self, compiler: Callable[[Function], Function]) -> None:
        """From now on compute what `compiler` makes of the model's code."""
        self._compiled = compiler(self._logits)

    def restore(self) -> None:
        """Undo `compile`."""
        self._compiled = None

    def _logits(self, tokens: Tensor, positions: Tensor, wanted: Tensor) -> Tensor:
        output = self._model(
            input_ids=tokens[None], position_ids=positions[None], use_cache=False, logits_to_keep=wanted
        )
        logits: Tensor = output.logits[0]
        return logits


def _padded(places: Tensor) -> Tensor:
    """With as many zeros as are missing. What the attention returns for tokens beyond a step's is arbitrary;
    a token's logits depend on its own row's tokens alone."""
    missing = FEWEST - len(places)
    return torch.cat((places, places.new_zeros(missing))) if missing > 0 else places
