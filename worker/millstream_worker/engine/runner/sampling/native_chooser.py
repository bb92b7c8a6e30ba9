"""Chooses on the CPU by the C++ library: the most likely tokens, from logits of the model's own dtype."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from millstream_worker.engine.brain.batch.plan import Sampled, TokenMasks
from millstream_worker.engine.runner.native.library import Library
from millstream_worker.engine.runner.sampling.chooser import Chosen
from millstream_worker.engine.runner.sampling.numpy_chooser import NumpyChooser
from millstream_worker.engine.runner.sampling.sampled_tensors import SampledTensors

_SHARED = 2**18  # logits that are worth more than one thread


class NativeGreedy:
    """Looks through rows in one pass, and answers in arrays that stay where they are: to make some takes as
    long as to look through a row."""

    def __init__(self, library: Library) -> None:
        self._entries = library.most_likely
        self._reserve(64)

    def takes(self, logits: Tensor) -> bool:
        """True if the library can look through these logits."""
        return logits.dtype in self._entries and logits.stride(1) == 1

    def most_likely(
        self, logits: Tensor, masks: TokenMasks | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Returns tokens [M] of logits [M, V], the first of equal ones that `masks` allow, and [M] which rows
        hold NaN or +inf, or nothing but -inf: their token is 0. Good until the next call."""
        rows, size = logits.shape
        if rows > len(self._tokens):
            self._reserve(rows)
        places = logits.data_ptr(), rows, size, logits.stride(0)
        threads = _threads_for(rows * size)
        if masks is None:
            self._entries[logits.dtype](*places, None, None, 0, *self._addresses, threads)
        else:
            bits, of_rows = np.ascontiguousarray(masks.bits), np.full(rows, -1, np.int32)
            of_rows[masks.indices] = np.arange(len(bits), dtype=np.int32)
            masked = of_rows.ctypes.data, bits.ctypes.data, bits.shape[1]
            self._entries[logits.dtype](*places, *masked, *self._addresses, threads)
        return self._tokens[:rows], self._non_finite[:rows]

    def _reserve(self, rows: int) -> None:
        self._tokens = np.zeros(rows, np.int64)
        self._non_finite = np.zeros(rows, np.bool_)
        self._addresses = self._tokens.ctypes.data, self._non_finite.ctypes.data


class NativeChooser(NumpyChooser):
    """Leaves to numpy what the library does not take."""

    def __init__(self, library: Library) -> None:
        self._greedy = NativeGreedy(library)
        self._masks = library.mask

    def most_likely(self, logits: Tensor) -> Chosen:
        if not self._greedy.takes(logits):
            return super().most_likely(logits)
        tokens, non_finite = self._greedy.most_likely(logits)
        return torch.from_numpy(tokens.copy()), torch.from_numpy(non_finite.copy())

    def mask(self, logits: Tensor, masks: TokenMasks) -> None:
        entry = self._masks.get(logits.dtype)
        if entry is None or logits.stride(1) != 1:
            super().mask(logits, masks)
            return
        bits, rows = np.ascontiguousarray(masks.bits), np.ascontiguousarray(masks.indices)
        threads = _threads_for(len(rows) * logits.shape[1])
        entry(
            logits.data_ptr(), logits.shape[1], logits.stride(0),
            rows.ctypes.data, len(rows), bits.ctypes.data, bits.shape[1], threads,
        )  # fmt: skip

    def sample_greedily(
        self, logits: Tensor, masks: TokenMasks | None, slots: NDArray[np.int32], last_tokens: Tensor
    ) -> SampledTensors | Sampled:
        """In one pass, without a copy: the logits stay as they are."""
        if not self._greedy.takes(logits):
            return super().sample_greedily(logits, masks, slots, last_tokens)
        tokens, non_finite = self._greedy.most_likely(logits, masks)
        last_tokens.numpy()[slots] = tokens
        return Sampled(tokens.astype(np.int32), {}, tuple(non_finite.nonzero()[0].tolist()))


def _threads_for(logits: int) -> int:
    """Returns 1, or all of torch's threads, to look through so many logits."""
    return torch.get_num_threads() if logits >= _SHARED else 1
