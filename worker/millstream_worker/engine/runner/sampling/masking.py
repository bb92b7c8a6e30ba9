"""Applies grammars' masks to logits, in place and without unpacking them: forbidden tokens become -inf."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from millstream_worker.engine.brain.batch.plan import TokenMasks
from millstream_worker.engine.runner.device.transfer import to_device, together
from millstream_worker.engine.runner.native.library import Library
from millstream_worker.engine.runner.sampling.greedy import threads_for
from millstream_worker.engine.runner.sampling.triton_draws import TritonDraws

_WORD = 32  # tokens


class Masking:
    """Masks by the C++ library or the Triton kernel where there is one, else by torch."""

    def __init__(self, library: Library | None, draws: TritonDraws | None = None) -> None:
        self._entries = library.mask if library else {}
        self._draws = draws

    def apply(self, logits: Tensor, masks: TokenMasks) -> None:
        """`logits` [L, vocabulary], of any floating dtype."""
        entry = self._entries.get(logits.dtype)
        if logits.stride(1) == 1 and self._draws is not None:
            self._draws.mask(logits, *together([masks.indices, masks.bits], logits.device))
            return
        if entry is None or logits.device.type != "cpu" or logits.stride(1) != 1:
            mask(logits, masks)
            return
        bits, rows = np.ascontiguousarray(masks.bits), np.ascontiguousarray(masks.indices)
        threads = threads_for(len(rows) * logits.shape[1])
        entry(
            logits.data_ptr(), logits.shape[1], logits.stride(0),
            rows.ctypes.data, len(rows), bits.ctypes.data, bits.shape[1], threads,
        )  # fmt: skip


def mask(logits: Tensor, masks: TokenMasks) -> None:
    """Mask by torch, on any device, row by row, so that temporary tensors stay small."""
    bits = to_device(masks.bits, logits.device)
    shifts = torch.arange(_WORD, dtype=torch.int32, device=logits.device)
    for place, row in enumerate(masks.indices.tolist()):
        allowed = (bits[place, :, None] >> shifts & 1).view(-1)[: logits.shape[1]].bool()
        logits[row].masked_fill_(~allowed, -torch.inf)
