"""Chooses by torch's own operations, on any device."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from millstream_worker.engine.runner.device.transfer import to_device
from millstream_worker.engine.runner.sampling.chooser import Chooser, Chosen
from millstream_worker.engine.runner.sampling.draw import draw_by_id, draw_by_rank, weigh
from millstream_worker.engine.runner.sampling.slot_settings import SamplingMethod, Settings, columns


class TorchChooser(Chooser):
    def most_likely(self, logits: Tensor) -> Chosen:
        peak, tokens = logits.max(-1)
        non_finite = peak.isfinite().logical_not_()
        return tokens.masked_fill_(non_finite, 0), non_finite

    def draw(
        self, logits: Tensor, method: SamplingMethod, settings: Settings, noise: NDArray[np.float64]
    ) -> Chosen:
        non_finite = logits.amax(-1).isfinite().logical_not_()
        there = to_device(columns(settings, noise), logits.device)[..., None]  # [4, M, 1] float64
        temperature, top_p, min_p, uniform = there
        weights = weigh(logits, temperature.float())
        if method is SamplingMethod.BY_ID:
            return draw_by_id(weights, min_p, uniform), non_finite
        top_k = to_device(settings["top_k"], logits.device)[:, None]
        most = int(settings["top_k"].max())
        return draw_by_rank(weights, top_k, top_p, min_p, uniform, most), non_finite
