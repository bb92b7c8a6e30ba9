"""Computes log-probabilities under the model's own distribution: log-softmax of logits before anything
changed them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from millstream_worker.engine.brain.batch.plan import SampledLogprobs
from millstream_worker.engine.runner.device.transfer import to_device

_LEAST = -9999.0  # OpenAI's: minus infinity has no JSON


@dataclass(frozen=True, slots=True, eq=False)
class LogprobTensors:
    """The log-probabilities of the M of L rows that asked, with K places each: the most that any wants."""

    rows: NDArray[np.int64]  # [M] index into L
    counts: NDArray[np.int64]  # [M] how many of the K the row wants
    sampled: Tensor  # [M]
    top_ids: Tensor  # [M, K], most likely first, equal ones by id
    top: Tensor  # [M, K]

    def map(self, move: Callable[[Tensor], Tensor]) -> LogprobTensors:
        return LogprobTensors(self.rows, self.counts, move(self.sampled), move(self.top_ids), move(self.top))

    def values(self) -> dict[int, SampledLogprobs]:
        """Returns them by index into L. The tensors are on the host."""
        tensors = (tensor.tolist() for tensor in (self.sampled, self.top_ids, self.top))
        rows = zip(self.rows, self.counts, *tensors, strict=True)
        return {
            int(row): SampledLogprobs(sampled, tuple(ids[:count]), tuple(top[:count]))
            for row, count, sampled, ids, top in rows
        }


def logprobs_of(
    logits: Tensor, tokens: Tensor, rows: NDArray[np.int64], counts: NDArray[np.int64], at_once: int
) -> LogprobTensors:
    """Returns those of some rows of logits [L, V], where tokens [L] were sampled. `rows` [M] says which,
    `counts` [M] how many of the most likely tokens each wants; `at_once` rows are worked on at a time."""
    most = min(int(counts.max()), logits.shape[-1])
    pieces = [
        _piece(logits.index_select(0, index).float(), tokens[index], most)
        for index in torch.split(to_device(rows, logits.device), at_once)
    ]
    sampled, top_ids, top = (torch.cat(parts) for parts in zip(*pieces, strict=True))
    return LogprobTensors(rows, counts, sampled, top_ids, top)


def _piece(logits: Tensor, tokens: Tensor, most: int) -> tuple[Tensor, Tensor, Tensor]:
    logprobs = logits.log_softmax(-1)
    sampled = logprobs.gather(-1, tokens[:, None]).squeeze(-1)
    # Bits of a float32 >= 0 order as the number does; with the id below them the keys are unique.
    keys = (logprobs.abs().view(torch.int32).to(torch.int64) << 32) | torch.arange(
        logits.shape[-1], device=logits.device
    )
    keys = keys.topk(most, largest=False).values
    top_ids = keys & 0xFFFFFFFF
    top = logprobs.gather(-1, top_ids)
    return sampled.clamp_(min=_LEAST), top_ids, top.clamp_(min=_LEAST)
