"""Chooses by Triton's kernels: one launch masks all rows that have a grammar, one draws for all rows whose
logits are taken as they are."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from millstream_worker.engine.brain.batch.plan import TokenMasks
from millstream_worker.engine.runner.device.transfer import to_device, together
from millstream_worker.engine.runner.gpu.sampling.triton_draws import TritonDraws
from millstream_worker.engine.runner.sampling.chooser import Candidates, Chosen, Rows
from millstream_worker.engine.runner.sampling.slot_settings import (
    SamplingMethod,
    Settings,
    columns,
    greedy,
)
from millstream_worker.engine.runner.sampling.torch_chooser import TorchChooser


class TritonChooser(TorchChooser):
    def __init__(self, draws: TritonDraws) -> None:
        self._draws = draws

    def mask(self, logits: Tensor, masks: TokenMasks) -> None:
        if logits.stride(1) == 1:
            self._draws.mask(logits, *together([masks.indices, masks.bits], logits.device))
        else:
            super().mask(logits, masks)

    def choose(self, rows: Candidates) -> Chosen:
        left = rows.changed | greedy(rows.settings)
        drawn = np.flatnonzero(~left)
        if not len(drawn):
            return super().choose(rows)
        found = self._launch(rows.logits, drawn, rows.settings[drawn], rows.noise[drawn])
        if len(drawn) == len(left):
            return found
        chosen, index = rows.nothing(), to_device(drawn, rows.logits.device)
        for all_of, some in zip(chosen, found, strict=True):
            all_of[index] = some
        self.choose_by_method(rows, left, chosen)
        return chosen

    def draw(
        self, logits: Tensor, method: SamplingMethod, settings: Settings, noise: NDArray[np.float64]
    ) -> Chosen:
        return self._launch(logits, np.arange(len(logits)), settings, noise)

    def _launch(self, logits: Tensor, rows: Rows, settings: Settings, noise: NDArray[np.float64]) -> Chosen:
        given = [rows, columns(settings, noise), settings["top_k"]]
        return self._draws.draw(logits, *together(given, logits.device))
