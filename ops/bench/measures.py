"""What is measured of one engine on one workload, and how it is summed up. Knows no engine and no model.

All requests of an offline workload arrive at once, at time 0: the time to the first token includes the wait
for a place in the batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

RANKS = (50, 95, 99)


@dataclass(frozen=True, slots=True)
class Timing:
    """One request, in seconds since it arrived. `first_s` None: its first token could not be seen."""

    first_s: float | None
    last_s: float
    tokens: int

    @property
    def tpot_s(self) -> float | None:
        """(last token - first token) / (output tokens - 1); None for a single token."""
        if self.first_s is None or self.tokens < 2:
            return None
        return (self.last_s - self.first_s) / (self.tokens - 1)


@dataclass(frozen=True, slots=True)
class Run:
    """One pass over a workload. `seconds`: from the first submission to the last token. `steps`: forwards of
    the model, None where they could not be counted. `peak_bytes`: of the engine's processes (or, on a GPU,
    of its memory) during the run."""

    seconds: float
    timings: tuple[Timing, ...]
    steps: int | None = None
    peak_bytes: int = 0

    @property
    def output_tokens(self) -> int:
        return sum(timing.tokens for timing in self.timings)

    @property
    def tokens_s(self) -> float:
        """Output tokens per second."""
        return self.output_tokens / self.seconds

    def ttft_s(self) -> tuple[float, ...]:
        """Percentiles 50, 95 and 99 of the time to the first token; empty where none was seen."""
        return percentiles(timing.first_s for timing in self.timings)

    def tpot_s(self) -> tuple[float, ...]:
        """Percentiles 50, 95 and 99 of the time per output token; empty where none was seen."""
        return percentiles(timing.tpot_s for timing in self.timings)

    def as_json(self) -> dict[str, Any]:
        """Times in units of 0.1 ms, so that the raw ones of many requests stay small."""
        times = [
            [None if t.first_s is None else round(t.first_s, 4), round(t.last_s, 4), t.tokens]
            for t in self.timings
        ]
        return {
            "seconds": round(self.seconds, 4),
            "steps": self.steps,
            "peak_bytes": self.peak_bytes,
            "requests": times,  # first token, last token, tokens
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Run:
        timings = tuple(Timing(*request) for request in data["requests"])
        return cls(data["seconds"], timings, data["steps"], data["peak_bytes"])


class TokenRecorder:
    """Records when the tokens of a run's requests arrive. Created when the first request is submitted."""

    def __init__(self, requests: int, now: float) -> None:
        self._start = now
        self._first: list[float | None] = [None] * requests
        self._last = [0.0] * requests
        self._tokens = [0] * requests

    def record(self, request: int, now: float, tokens: int = 1) -> None:
        """Record `tokens` more of this request."""
        self.record_each((request,), now, tokens)

    def record_each(self, requests: Iterable[int], now: float, tokens: int = 1) -> None:
        """The same for many at once, cheaply: this runs between an engine's steps."""
        elapsed = now - self._start
        firsts, lasts, counts = self._first, self._last, self._tokens
        for request in requests:
            if firsts[request] is None:
                firsts[request] = elapsed
            lasts[request] = elapsed
            counts[request] += tokens

    def run(self, expected: Sequence[int], steps: int | None) -> Run:
        """The recorded run. Raises ValueError where a request has another number of tokens than `expected`:
        an engine that does less work must not look faster."""
        for request, (tokens, wanted) in enumerate(zip(self._tokens, expected, strict=True)):
            if tokens != wanted:
                raise ValueError(f"request {request} has {tokens} tokens instead of {wanted}")
        timings = zip(self._first, self._last, self._tokens, strict=True)
        return Run(max(self._last), tuple(Timing(*timing) for timing in timings), steps)


def best(runs: Sequence[Run]) -> Run:
    """The fastest: what disturbs a run only makes it slower."""
    return max(runs, key=lambda run: run.tokens_s)


def percentiles(values: Iterable[float | None], ranks: Sequence[int] = RANKS) -> tuple[float, ...]:
    """Nearest ranks of those that are not None; empty where there are none."""
    ranked = sorted(value for value in values if value is not None)
    return tuple(percentile(ranked, rank / 100) for rank in ranks) if ranked else ()


def percentile(ranked: Sequence[float], share: float) -> float:
    """The smallest of the values that so large a share of them does not exceed (nearest rank)."""
    return ranked[max(1, math.ceil(share * len(ranked))) - 1]
