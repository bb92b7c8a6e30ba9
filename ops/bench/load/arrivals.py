"""Requests that arrive over time: the arrivals of an open loop, and the result of each.

All seconds count from the start of the load. A request's latency and the time of its first token count from
its scheduled arrival: a late server, or generator, makes them longer and never thins out the load.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from ops.bench.measures import percentile

SATURATED = 1.15  # times the arrivals' and one request's duration: above it the queue has grown


@dataclass(frozen=True, slots=True)
class Arrival:
    at_s: float
    prompt: tuple[int, ...]
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Prompts:
    """Requests with a shared prefix: `shared` tokens of all, `own` tokens, and `output` to sample."""

    shared: int = 200
    own: int = 30
    output: int = 50

    def arrivals(self, rate_s: float, count: int, *, vocab: int, seed: int) -> list[Arrival]:
        """At `rate_s` on average. The shared part is the same for every seed, the own parts are not."""
        head = _ids(random.Random(0), self.shared, vocab)
        draw = random.Random(seed)
        times = poisson(rate_s, count, seed)
        return [Arrival(at_s, head + _ids(draw, self.own, vocab), self.output) for at_s in times]


@dataclass(slots=True)
class Served:
    """One request, as its client saw it."""

    due_s: float
    tokens: int = 0
    first_s: float | None = None
    end_s: float | None = None

    def take(self, tokens: int, now_s: float) -> None:
        if tokens and self.first_s is None:
            self.first_s = now_s
        self.tokens += tokens


@dataclass(frozen=True, slots=True)
class Spread:
    mean: float
    p50: float
    p95: float
    p99: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        ranked = sorted(values)
        return cls(sum(ranked) / len(ranked), *(percentile(ranked, share) for share in (0.5, 0.95, 0.99)))


@dataclass(frozen=True, slots=True)
class LoadPoint:
    """One rate. A request that had not ended when the run was cut off counts with the time until then: too
    short.
    """

    offered_s: float
    done_s: float  # requests that ended, over the time from the first arrival to the last end
    latency_s: Spread
    first_token_s: Spread
    requests: int
    unfinished: int
    stretch: float  # the time to the last end, over that of the arrivals and the fastest request

    @property
    def saturated(self) -> bool:
        return bool(self.unfinished) or self.stretch > SATURATED

    @classmethod
    def of(cls, offered_s: float, served: Sequence[Served], *, warm: int, cut_s: float) -> LoadPoint:
        """Without the first `warm` requests. `cut_s`: the end of the run."""
        counted = served[warm:]
        latencies_s = [(cut_s if one.end_s is None else one.end_s) - one.due_s for one in counted]
        ends = [one.end_s for one in counted if one.end_s is not None]
        span_s = (max(ends) if len(ends) == len(counted) else cut_s) - counted[0].due_s
        return cls(
            offered_s,
            len(ends) / span_s,
            Spread.of(latencies_s),
            Spread.of([(cut_s if one.first_s is None else one.first_s) - one.due_s for one in counted]),
            len(counted),
            len(counted) - len(ends),
            span_s / (len(counted) / offered_s + min(latencies_s)),
        )


def poisson(rate_s: float, count: int, seed: int) -> list[float]:
    """The seconds of a Poisson process of that rate in which exactly `count` requests come in count / rate
    seconds: given their number, its times are independent and uniform. So each run offers the rate it says.
    """
    draw = random.Random(f"arrivals {seed}")
    return sorted(draw.uniform(0.0, count / rate_s) for _ in range(count))


def _ids(draw: random.Random, count: int, vocab: int) -> tuple[int, ...]:
    return tuple(draw.randrange(10, min(vocab, 10_000)) for _ in range(count))
