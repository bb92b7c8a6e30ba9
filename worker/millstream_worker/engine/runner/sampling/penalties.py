"""Which tokens the rows in the batch have seen: what repetition, presence and frequency penalties go by.

One int32 per token and penalised row: twice the times it was sampled, plus one if it is in the prompt. Memory
is taken when the first penalised row arrives and doubles with the most that were in the batch at once.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from millstream_worker.engine.runner.device.transfer import to_device

_PROMPT = 1
_SAMPLED = 2


class Penalties:
    """Rows are known by their batch slot."""

    def __init__(self, vocab_size: int, max_rows: int, device: torch.device) -> None:
        self._seen = torch.zeros(0, vocab_size, dtype=torch.int32, device=device)
        self._places = np.full(max_rows, max_rows, np.int64)  # slot → row of `_seen`; max_rows: it has none
        self._free: list[int] = []
        self._none = max_rows

    def load(self, slot: int, prompt: tuple[int, ...], output: tuple[int, ...]) -> None:
        """Start (or restart, after a preemption) the slot's history."""
        if self._places[slot] == self._none:
            if not self._free:
                self._grow()
            self._places[slot] = self._free.pop()
        row = self._seen[self._places[slot]]
        row.zero_()
        row.index_fill_(0, to_device(np.unique(np.asarray(prompt, np.int64)), row.device), _PROMPT)
        sampled, counts = np.unique(np.asarray(output, np.int64), return_counts=True)
        times = to_device((counts * _SAMPLED).astype(np.int32), row.device)
        row.index_add_(0, to_device(sampled, row.device), times)

    def unload(self, slot: int) -> None:
        """The slot's row has no penalties: whatever history the slot had is forgotten."""
        if self._places[slot] != self._none:
            self._free.append(int(self._places[slot]))
            self._places[slot] = self._none

    def apply(self, logits: Tensor, rows: Tensor, histories: Tensor, amounts: Tensor) -> None:
        """Penalise some `rows` [M] of float32 logits [*, V] in place; `amounts` [3, M]: repetition, presence,
        frequency.

        Repetition as in transformers and vLLM (https://arxiv.org/abs/1909.05858), over prompt and output;
        presence and frequency as OpenAI defines them, over the output only.
        """
        seen = self._seen.index_select(0, histories)
        amounts = amounts.to(logits.dtype)
        if seen.device.type == "cpu":  # of the tokens that were seen alone: a hundredth of the work
            places = torch.from_numpy(np.flatnonzero(seen.numpy() != 0))
            row, token = places // seen.shape[1], places % seen.shape[1]
            chosen = (rows[row], token)
            logits[chosen] = _penalised(logits[chosen], seen.view(-1)[places], amounts[:, row])
        else:
            logits[rows] = _penalised(logits[rows], seen, amounts[..., None])

    def count(self, histories: Tensor, tokens: Tensor) -> None:
        """Count sampled tokens [M]."""
        sampled = torch.full_like(tokens, _SAMPLED, dtype=torch.int32)
        self._seen.index_put_((histories, tokens), sampled, accumulate=True)

    def histories(self, slots: NDArray[np.int32]) -> NDArray[np.int64]:
        """Indices of the histories of these slots, for `apply` and `count`. All of them are loaded."""
        return self._places[slots]

    def _grow(self) -> None:
        held, vocab_size = self._seen.shape
        more = min(max(held, 1), self._none - held)
        self._seen = torch.cat([self._seen, self._seen.new_zeros(more, vocab_size)])
        self._free.extend(range(held, held + more))


def _penalised(logits: Tensor, seen: Tensor, amounts: Tensor) -> Tensor:
    """Logits of any shape that `seen` has, too; each of the `amounts` broadcasts to it."""
    repetition, presence, frequency = amounts
    repeated = torch.where(logits > 0, logits / repetition, logits * repetition)
    sampled = seen >> 1  # times
    penalised: Tensor = torch.where(seen > 0, repeated, logits)
    return penalised.sub_(frequency * sampled).sub_(presence * (sampled > 0))
