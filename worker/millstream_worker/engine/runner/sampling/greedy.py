"""Finds the most likely token of each row, from logits of the model's own dtype."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from millstream_worker.engine.brain.batch.plan import TokenMasks
from millstream_worker.engine.runner.native.library import Library

_SHARED = 2**18  # logits that are worth more than one thread


def threads_for(logits: int) -> int:
    """Returns 1, or all of torch's threads, to look through so many logits."""
    return torch.get_num_threads() if logits >= _SHARED else 1


class NativeGreedy:
    """Looks through at most `most_rows` in one pass, and answers in arrays that stay where they are: to make
    some takes as long as to look through a row."""

    def __init__(self, library: Library, most_rows: int) -> None:
        self._entries = library.most_likely
        self._tokens = np.zeros(most_rows, np.int64)
        self._non_finite = np.zeros(most_rows, np.bool_)
        self._addresses = self._tokens.ctypes.data, self._non_finite.ctypes.data

    def takes(self, logits: Tensor) -> bool:
        """True if the library can look through these logits."""
        return logits.dtype in self._entries and len(logits) <= len(self._tokens) and logits.stride(1) == 1

    def most_likely(
        self, logits: Tensor, masks: TokenMasks | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Returns tokens [M] of logits [M, V], the first of equal ones that `masks` allow, and [M] which rows
        hold NaN or +inf, or nothing but -inf: their token is 0. Good until the next call."""
        rows, size = logits.shape
        places = logits.data_ptr(), rows, size, logits.stride(0)
        threads = threads_for(rows * size)
        if masks is None:
            self._entries[logits.dtype](*places, None, None, 0, *self._addresses, threads)
        else:
            bits, of_rows = np.ascontiguousarray(masks.bits), np.full(rows, -1, np.int32)
            of_rows[masks.indices] = np.arange(len(bits), dtype=np.int32)
            masked = of_rows.ctypes.data, bits.ctypes.data, bits.shape[1]
            self._entries[logits.dtype](*places, *masked, *self._addresses, threads)
        return self._tokens[:rows], self._non_finite[:rows]


def most_likely(logits: Tensor, native: NativeGreedy | None = None) -> tuple[Tensor, Tensor]:
    """Tokens [M] of logits [M, V], the first of equal ones, and [M] which rows hold NaN or +inf, or nothing
    but -inf: their token is 0."""
    if logits.device.type != "cpu":
        peak, tokens = logits.max(-1)
        wrong = peak.isfinite().logical_not_()
        return tokens.masked_fill_(wrong, 0), wrong
    if native is not None and native.takes(logits):
        chosen, non_finite = (array.copy() for array in native.most_likely(logits))
    else:  # numpy's argmax is vectorised, torch's is not: it took twelve times as long
        values = logits.float().numpy()
        chosen = values.argmax(-1)  # of the first NaN, where there is one
        non_finite = ~np.isfinite(values[np.arange(len(chosen)), chosen])
    chosen[non_finite] = 0
    return torch.from_numpy(chosen), torch.from_numpy(non_finite)
