"""Computes a head's answer for a packed step: by the model's body and the head, or by what both were compiled
to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import FunctionType

import torch
from torch import Tensor
from transformers import PreTrainedModel

from millstream_worker.engine.brain.batch.plan import LOGITS
from millstream_worker.engine.runner.heads.head import Head
from millstream_worker.engine.runner.heads.logits_head import LogitsHead
from millstream_worker.engine.runner.model.anatomy import Anatomy
from millstream_worker.engine.runner.model.body import Body, CannotCut

Function = Callable[[Tensor, Tensor, Tensor], Tensor]
FEWEST = 2  # tokens, and answers, of compiled code: it would take a size of one for a constant


class ModelHeads:
    """The heads of a model by name, each with the body. The model's attention modules have their storage when
    one is called. A model that cannot be cut computes logits as a whole, and has no other head."""

    def __init__(self, model: PreTrainedModel, anatomy: Anatomy, others: Mapping[str, Head] | None = None):
        self.body: Body | None = None
        self.heads: dict[str, Head] = {}
        self.uncut = ""  # why there is no body
        self._compiled: dict[str, Function] = {}
        try:
            self.body = body = Body(anatomy.body)
            logits = LogitsHead(model, body.call.module, body.tokens, body.call.output)
            self.heads = {LOGITS: logits, **(others or {})}
            self._functions = {name: _joined(name, body, head) for name, head in self.heads.items()}
        except CannotCut as error:
            self.uncut = str(error)
            self._functions = {LOGITS: _whole(model)}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._functions)

    @torch.inference_mode()
    def __call__(self, name: str, tokens: Tensor, positions: Tensor, wanted: Tensor) -> Tensor:
        """Takes tokens and positions [T], and wanted places [L], all int64; returns [L, size]."""
        compiled = self._compiled.get(name)
        if compiled is None:
            return self._functions[name](tokens, positions, wanted)
        return compiled(_padded(tokens), _padded(positions), _padded(wanted))[: len(wanted)]

    @torch.inference_mode()
    def of_embeddings(self, name: str, embeddings: Tensor, positions: Tensor, wanted: Tensor) -> Tensor:
        """As a call, with embeddings [T, size] instead of tokens; never compiled. The model can be cut."""
        assert self.body is not None, f"the model cannot be cut: {self.uncut}"
        return self.heads[name](self.body.of_embeddings(embeddings, positions), wanted)

    def compile(self, compiler: Callable[[Function], Function]) -> None:
        """From now on compute what `compiler` makes of body and head together."""
        self._compiled = {name: compiler(function) for name, function in self._functions.items()}

    def restore(self) -> None:
        """Undo `compile`."""
        self._compiled = {}


def _joined(name: str, body: Body, head: Head) -> Function:
    def joined(tokens: Tensor, positions: Tensor, wanted: Tensor) -> Tensor:
        return head(body(tokens, positions), wanted)

    # torch keeps what it has compiled by the code of a function: each head has its own
    code = joined.__code__.replace(co_name=name)
    return FunctionType(code, globals(), name, closure=joined.__closure__)


def _whole(model: PreTrainedModel) -> Function:
    def logits(tokens: Tensor, positions: Tensor, wanted: Tensor) -> Tensor:
        output = model(
            input_ids=tokens[None], position_ids=positions[None], use_cache=False, logits_to_keep=wanted
        )
        found: Tensor = output.logits[0]
        return found

    return logits


def _padded(places: Tensor) -> Tensor:
    """With as many zeros as are missing. What the attention returns for tokens beyond a step's is arbitrary;
    an answer depends on its own row's tokens alone."""
    missing = FEWEST - len(places)
    return torch.cat((places, places.new_zeros(missing))) if missing > 0 else places
