"""Sparse additions to logits, by slot: logit_bias, and minus infinity on ends that come too early."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from millstream_worker.engine.runner.device.transfer import to_device


class SlotBias:
    """A few (token id, amount) pairs per slot in device tables as wide as the longest list so far."""

    def __init__(self, vocab_size: int, max_rows: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._ids = torch.zeros(max_rows, 0, dtype=torch.int64, device=device)
        self._amounts = torch.zeros(max_rows, 0, dtype=torch.float32, device=device)

    def load(self, slot: int, pairs: Sequence[tuple[int, float]]) -> None:
        """Replace the slot's list. Ids beyond the vocabulary are left out: they are never sampled."""
        known = [(token, amount) for token, amount in pairs if 0 <= token < self._vocab_size]
        if len(known) > self._ids.shape[1]:
            self._widen(len(known))
        self._amounts[slot] = 0  # places beyond the list add nothing, whatever id stands there
        if known:
            ids, amounts = zip(*known, strict=True)
            self._ids[slot, : len(ids)] = to_device(np.array(ids), self._ids.device)
            self._amounts[slot, : len(ids)] = to_device(np.array(amounts), self._ids.device)

    def add(self, logits: Tensor, slots: Tensor, only: Tensor | None = None) -> None:
        """Add to float32 logits [M, V] in place what the slots [M] hold; `only` [M] says for which rows."""
        amounts = self._amounts[slots]
        if only is not None:
            amounts.masked_fill_(~only[:, None], 0)
        logits.scatter_add_(1, self._ids[slots], amounts)

    def _widen(self, least: int) -> None:
        more = max(least, 2 * self._ids.shape[1]) - self._ids.shape[1]
        self._ids = torch.nn.functional.pad(self._ids, (0, more))
        self._amounts = torch.nn.functional.pad(self._amounts, (0, more))
