"""Defines what the backends of sampling do: mask logits, and choose tokens of them. An engine has one, chosen
at start."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from millstream_worker.engine.brain.batch.plan import Sampled, TokenMasks
from millstream_worker.engine.runner.device.transfer import to_device
from millstream_worker.engine.runner.sampling.sampled_tensors import SampledTensors, keep
from millstream_worker.engine.runner.sampling.slot_settings import SamplingMethod, Settings, methods

Chosen = tuple[Tensor, Tensor]  # tokens [M] int64; [M] bool which rows are not finite: theirs mean nothing
Rows = NDArray[np.int64]  # [M] indices of logits
_WORD = 32  # tokens


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """The logits of a step, and how a token is chosen from each row. `change` applies bias, penalties and
    minimal lengths to float32 logits [M, V] of so many rows, in place."""

    logits: Tensor  # [L, V]
    settings: Settings  # [L]
    noise: NDArray[np.float64]  # [L] uniforms
    changed: NDArray[np.bool_]  # [L] the rows whose logits are not taken as they are
    change: Callable[[Tensor, Rows], None]
    piece_rows: int  # worked on at a time

    def nothing(self) -> Chosen:
        """Returns tokens and flags to be filled in."""
        count, device = len(self.logits), self.logits.device
        tokens = torch.empty(count, dtype=torch.int64, device=device)
        return tokens, torch.empty(count, dtype=torch.bool, device=device)

    def pieces(self, rows: Rows) -> Iterator[Rows]:
        for start in range(0, len(rows), self.piece_rows):
            yield rows[start : start + self.piece_rows]


class Chooser(ABC):
    """Chooses for rows whose answer is the same in every backend, up to the rounding of exp."""

    @abstractmethod
    def most_likely(self, logits: Tensor) -> Chosen:
        """Tokens of logits [M, V] of any floating dtype, the first of equal ones. A row that holds NaN or
        +inf, or nothing but -inf, is not finite: its token is 0."""

    @abstractmethod
    def draw(
        self, logits: Tensor, method: SamplingMethod, settings: Settings, noise: NDArray[np.float64]
    ) -> Chosen:
        """Tokens of float32 logits [M, V] by one method, which is not GREEDY."""

    def mask(self, logits: Tensor, masks: TokenMasks) -> None:
        """Makes -inf, in place, of logits [L, V] of any floating dtype what `masks` forbid. By torch, row by
        row, so that temporary tensors stay small."""
        bits = to_device(masks.bits, logits.device)
        shifts = torch.arange(_WORD, dtype=torch.int32, device=logits.device)
        for place, row in enumerate(masks.indices.tolist()):
            allowed = (bits[place, :, None] >> shifts & 1).view(-1)[: logits.shape[1]].bool()
            logits[row].masked_fill_(~allowed, -torch.inf)

    def sample_greedily(
        self, logits: Tensor, masks: TokenMasks | None, slots: NDArray[np.int32], last_tokens: Tensor
    ) -> SampledTensors | Sampled:
        """Samples the most likely tokens that `masks` allow, which become those of `slots` in `last_tokens`.
        What they forbid may become -inf in place."""
        if masks is not None:
            self.mask(logits, masks)
        tokens, non_finite = self.most_likely(logits)
        keep(tokens, slots, last_tokens)
        return SampledTensors.sent(tokens, non_finite)

    def choose(self, rows: Candidates) -> Chosen:
        """A token of each row, each group of rows in the cheapest way that gives its answer."""
        chosen = rows.nothing()
        self.choose_by_method(rows, np.ones(len(rows.logits), np.bool_), chosen)
        return chosen

    def choose_by_method(self, rows: Candidates, left: NDArray[np.bool_], chosen: Chosen) -> None:
        """Fills in the tokens of the rows that are `left` [L]."""
        for method, members in methods(rows.settings, rows.logits.shape[1]):
            for piece in rows.pieces(members[left[members]]):
                index = to_device(piece, rows.logits.device)
                part = rows.logits.index_select(0, index).float()
                if rows.changed[piece].any():
                    rows.change(part, piece)
                if method is SamplingMethod.GREEDY:
                    found = self.most_likely(part)
                else:
                    found = self.draw(part, method, rows.settings[piece], rows.noise[piece])
                for all_of, some in zip(chosen, found, strict=True):
                    all_of[index] = some
