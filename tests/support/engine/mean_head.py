"""A second head for tests, beside that of logits."""

from __future__ import annotations

from dataclasses import replace

import torch

from millstream_worker.engine.runner.model.load import LoadedModel
from millstream_worker.engine.runner.model.model_heads import ModelHeads


class Mean:
    """The mean of the hidden states of each row's new tokens; `wanted` are the last of each row."""

    def __call__(self, hidden: torch.Tensor, wanted: torch.Tensor | None) -> torch.Tensor:
        if wanted is None:  # each token is the last of a row
            return hidden.clone()
        before = torch.cat((wanted.new_full((1,), -1), wanted[:-1]))
        places = torch.arange(len(hidden), device=hidden.device)
        within = (places > before[:, None]) & (places <= wanted[:, None])  # [L, T]
        total = (hidden[None] * within[..., None]).sum(1)
        return total / within.sum(1, keepdim=True)


def with_mean(loaded: LoadedModel) -> LoadedModel:
    return replace(loaded, heads=ModelHeads(loaded.model, loaded.anatomy, {"mean": Mean()}))
