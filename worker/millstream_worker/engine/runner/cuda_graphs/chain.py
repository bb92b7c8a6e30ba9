"""One size of step as recordings with a gap at each layer's attention, which depends on the lengths of the
step's rows and is computed anew each time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from millstream_worker.engine.runner.attention.hook import HookableAttention
from millstream_worker.engine.runner.attention.interface import AttentionBackend
from millstream_worker.engine.runner.cuda_graphs.recorder import Recorder, Replay


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


def record_chain(run: Callable[[], None], attention: HookableAttention, recorder: Recorder) -> Chain:
    """Record `run`, which computes one step through `attention`, and leave out its attention."""
    recordings: list[Replay] = []
    gaps: list[Gap] = []

    def leave_out(layer: int, query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None) -> Tensor:
        # Made in the recording: whoever gets it may compute in its memory, as compiled code does.
        out = value.new_zeros(len(query), query.shape[1], value.shape[2])
        recordings.append(recorder.end())
        place = recorder.place
        kept_sinks = None if sinks is None else place(sinks)
        gaps.append(Gap(layer, place(query), place(key), place(value), kept_sinks, place(out)))
        recorder.begin()
        return out

    with attention.hooked(leave_out):
        recorder.begin()
        try:
            run()
            recordings.append(recorder.end())
        finally:
            recorder.drop()
    return Chain(tuple(recordings), tuple(gaps))
