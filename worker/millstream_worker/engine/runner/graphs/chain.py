"""One size of step as recordings with a gap at each layer's attention, which depends on the lengths of the
step's rows and is computed anew each time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from millstream_worker.engine.runner.attention.breakable import BreakableAttention
from millstream_worker.engine.runner.attention.interface import AttentionBackend, LayerSpec
from millstream_worker.engine.runner.graphs.recorder import Recorder, Replay


@dataclass(frozen=True, slots=True, eq=False)
class Gap:
    """A layer's attention as it was called, in tensors that are filled before it and read after it."""

    layer: int
    query: Tensor
    key: Tensor
    value: Tensor
    sinks: Tensor | None
    out: Tensor

    def close(self, backend: AttentionBackend, tokens: int) -> None:
        """Attend from the first `tokens` of its tokens; the others are padding."""
        query, key, value = (tensor[:tokens] for tensor in (self.query, self.key, self.value))
        self.out[:tokens].copy_(backend.attend(self.layer, query, key, value, self.sinks))


@dataclass(frozen=True, slots=True, eq=False)
class Chain:
    """Recordings and gaps in turn; a recording comes first and last."""

    recordings: tuple[Replay, ...]
    gaps: tuple[Gap, ...]

    def replay(self, backend: AttentionBackend, tokens: int) -> None:
        for recording, gap in zip(self.recordings, self.gaps, strict=False):
            recording()
            gap.close(backend, tokens)
        self.recordings[-1]()


class Answers:
    """Where the layers' attention answers, one memory for all of them: an answer is read before the next
    layer's is written."""

    def __init__(
        self, layers: tuple[LayerSpec, ...], tokens: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._layers = layers
        widest = max(layer.heads * layer.value_dim for layer in layers)
        self._memory = torch.zeros(tokens * widest, dtype=dtype, device=device)

    def of(self, layer: int, tokens: int) -> Tensor:
        """[tokens, heads, value_dim], contiguous."""
        spec = self._layers[layer]
        size = tokens * spec.heads * spec.value_dim
        return self._memory[:size].view(tokens, spec.heads, spec.value_dim)


def record_chain(
    run: Callable[[], None], attention: BreakableAttention, answers: Answers, recorder: Recorder
) -> Chain:
    """Record `run`, which computes one step through `attention`, and leave out its attention."""
    recordings: list[Replay] = []
    gaps: list[Gap] = []

    def leave_out(layer: int, query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None) -> Tensor:
        out = answers.of(layer, len(query))
        recordings.append(recorder.end())
        place = recorder.place
        kept_sinks = None if sinks is None else place(sinks)
        gaps.append(Gap(layer, place(query), place(key), place(value), kept_sinks, out))
        recorder.begin()
        return out

    with attention.taken_by(leave_out):
        recorder.begin()
        try:
            run()
            recordings.append(recorder.end())
        finally:
            recorder.drop()
    return Chain(tuple(recordings), tuple(gaps))
