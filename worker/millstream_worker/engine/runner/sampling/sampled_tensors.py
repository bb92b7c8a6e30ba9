"""Carries a step's samples from the device to the host."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from millstream_worker.engine.brain.batch.plan import Sampled
from millstream_worker.engine.runner.device.transfer import to_device, to_host
from millstream_worker.engine.runner.sampling.logprobs import LogprobTensors


@dataclass(frozen=True, slots=True, eq=False)
class SampledTensors:
    """One step's samples. Copies to the host have been started."""

    tokens: Tensor  # [L] int64, on the device
    tokens_host: Tensor
    non_finite_host: Tensor  # [L] bool
    logprobs_host: LogprobTensors | None
    copied: torch.cuda.Event | None  # passed when the host's copies are there; None: they are

    @classmethod
    def sent(
        cls, tokens: Tensor, non_finite: Tensor, logprobs: LogprobTensors | None = None
    ) -> SampledTensors:
        """Starts the copies."""
        tokens_host, non_finite_host = to_host(tokens), to_host(non_finite)
        logprobs_host = logprobs.map(to_host) if logprobs else None
        copied = None
        if tokens.device.type == "cuda":
            copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            copied.record()
        return cls(tokens, tokens_host, non_finite_host, logprobs_host, copied)

    def arrived(self) -> Sampled:
        """Returns the host's values; waits for that step, not for one launched after it."""
        if self.copied is not None:
            self.copied.synchronize()
        non_finite = tuple(self.non_finite_host.numpy().nonzero()[0].tolist())
        logprobs = self.logprobs_host.values() if self.logprobs_host else {}
        sound = {index: values for index, values in logprobs.items() if index not in non_finite}
        return Sampled(self.tokens_host.numpy().astype(np.int32), sound, non_finite)


def keep(tokens: Tensor, slots: NDArray[np.int32], last_tokens: Tensor) -> None:
    """Puts tokens [L] into those slots of `last_tokens`."""
    last_tokens.index_copy_(0, to_device(slots.astype(np.int64), last_tokens.device), tokens)
