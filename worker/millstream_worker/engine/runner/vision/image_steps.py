"""Computes the steps in which images stand: their features in the place of their tokens' embeddings, and then
the model's layers. All other steps go their own way."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from millstream_worker.engine.brain.batch.plan import Plan
from millstream_worker.engine.runner.forward import Eager
from millstream_worker.engine.runner.vision.image_features import ImageFeatures

ROTARY = "rotary_emb"  # transformers' name of what computes RoPE, in the modules that hold the layers


class _AxesRotary(nn.Module):
    """RoPE of several axes, in the place of the text half's own: for the positions [A, 1, T] of a step."""

    def __init__(self, rotary: nn.Module, positions: Tensor, *, interleaved: bool) -> None:
        super().__init__()
        self._rotary, self._positions, self._interleaved = rotary, positions, interleaved

    def forward(self, states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, ...]:
        angles: tuple[Tensor, ...] = self._rotary(states, self._positions)
        return tuple(map(in_two_rows, angles)) if self._interleaved else angles


def in_two_rows(angles: Tensor) -> Tensor:
    """Returns angles [..., a a b b] as [..., a b a b]."""
    return torch.cat((angles[..., ::2], angles[..., ::2]), -1)


@dataclass(frozen=True, slots=True, eq=False)
class ImageSteps:
    """`eager`: the model as it is called from Python."""

    eager: Eager
    images: ImageFeatures

    def encode(self, plan: Plan) -> float:
        """Encode the units that come before the step; returns the seconds that it took."""
        return self.images.encode(plan.encodes) if plan.encodes else 0.0

    def run(self, plan: Plan) -> Tensor:
        """Returns the answer of the plan's head, as `Forward.run` does. Its images are encoded."""
        self.eager.begin(plan)
        tokens, positions, wanted = self.eager.inputs(plan)
        loaded = self.eager.loaded
        embeddings = self.images.put_into(loaded.model.get_input_embeddings()(tokens), plan.images)
        with self._axes(plan), self._deep(plan):
            return loaded.heads.of_embeddings(plan.head, embeddings, positions, wanted)

    @contextlib.contextmanager
    def _axes(self, plan: Plan) -> Iterator[None]:
        """Within it RoPE has the axes of the plan."""
        axes, rotary = plan.rope_positions, self.images.tower.rotary
        body = self.eager.loaded.heads.body
        if axes is None or len(axes) == 1 or rotary is None or body is None:
            yield
            return
        positions = torch.from_numpy(axes.astype(np.int64)).to(self.eager.loaded.device)
        holder = body.call.module
        own = holder.get_submodule(ROTARY)
        setattr(
            holder, ROTARY, _AxesRotary(rotary, positions[:, None], interleaved=self.images.tower.interleaved)
        )
        try:
            yield
        finally:
            setattr(holder, ROTARY, own)

    @contextlib.contextmanager
    def _deep(self, plan: Plan) -> Iterator[None]:
        """Within it the first layers add what the images have for them."""
        layers = self.eager.loaded.anatomy.layers or ()
        with contextlib.ExitStack() as hooks:
            for number, layer in enumerate(layers[: self.images.tower.layers]):

                def add(_: nn.Module, __: Any, answer: Any, number: int = number) -> None:
                    states = answer if isinstance(answer, Tensor) else answer[0]
                    self.images.add_to(states, plan.images, number)

                hooks.callback(layer.register_forward_hook(add).remove)
            yield
