"""Applies grammars' masks to logits, in place and without unpacking them: what may not come becomes -inf."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from millstream_worker.engine.brain.batch.plan import TokenMasks
from millstream_worker.engine.runner.device.transfer import to_device
from millstream_worker.engine.runner.native.library import Library

_WORD = 32  # tokens


class Masking:
    """By our library where there is one, else by torch."""

    def __init__(self, library: Library | None) -> None:
        self._entries = library.mask if library else {}

    def apply(self, logits: Tensor, masks: TokenMasks) -> None:
        """`logits` [L, vocabulary], of any floating dtype."""
        entry = self._entries.get(logits.dtype)
        if entry is None or logits.device.type != "cpu" or logits.stride(1) != 1:
            _apply(logits, masks)
            return
        bits, rows = np.ascontiguousarray(masks.bits), np.ascontiguousarray(masks.indices)
        entry(
            logits.data_ptr(), logits.shape[1], logits.stride(0),
            rows.ctypes.data, len(rows), bits.ctypes.data, bits.shape[1],
        )  # fmt: skip


def _apply(logits: Tensor, masks: TokenMasks) -> None:
    """On any device, row by row: what is made in between is small."""
    bits = to_device(masks.bits, logits.device)
    shifts = torch.arange(_WORD, dtype=torch.int32, device=logits.device)
    for place, row in enumerate(masks.indices.tolist()):
        allowed = (bits[place, :, None] >> shifts & 1).view(-1)[: logits.shape[1]].bool()
        logits[row].masked_fill_(~allowed, -torch.inf)
