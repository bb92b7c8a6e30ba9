"""A step's token ids: from the plan, or what a row's slot drew last where the host has not seen it yet."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from millstream_worker.engine.brain.batch.plan import Int64, Plan


def sampled_in(plan: Plan) -> Int64:
    """[T] the batch slot whose last token stands at each place; -1 where the plan's own does."""
    sources = np.full(plan.token_count, -1, np.int64)
    places = np.flatnonzero(plan.from_device)
    if len(places):
        segments = np.searchsorted(plan.query_starts, places, side="right") - 1
        sources[places] = plan.row_slots[segments]
    return sources


def token_ids(tokens: Tensor, sources: Tensor, last_tokens: Tensor) -> Tensor:
    """[T] int64: `tokens` where `sources`, both [T], are -1, else that slot's of `last_tokens`."""
    return torch.where(sources < 0, tokens, last_tokens[sources.clamp(min=0)])
