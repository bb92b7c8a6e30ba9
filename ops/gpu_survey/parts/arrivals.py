"""Requests that arrive over time, 200 shared tokens, 30 of their own and 50 to sample, with the shared prefix
computed once and without: the experiment of ops.bench.load.prefix, on an engine that is ready."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ops.bench.load.arrivals import LoadPoint, Prompts
from ops.bench.load.engine import drive
from ops.gpu_survey.parts.workload_runs import Served
from ops.gpu_survey.survey import Survey

from millstream_worker.engine.protocol.outputs import Refused
from millstream_worker.engine.protocol.request import EngineRequest

RATES = (10.0, 15.0, 25.0, 300.0, 450.0)  # requests/s: the published ones, and where an 8B shape saturates
_SECONDS = 3.0
_FIRST_HANDLES = {True: 100_000, False: 200_000}  # no handle is used twice


class _Apart:
    """An engine whose requests share no blocks."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def add(self, request: EngineRequest) -> Refused | None:
        found: Refused | None = self._engine.add(replace(request, salt=f"apart {request.handle}"))
        return found


def arriving(survey: Survey, served: Served, shared: bool) -> str:
    rates, prompts = ((5.0,), Prompts(20, 3, 5)) if survey.tiny else (RATES, Prompts())
    engine = served.engine if shared else _Apart(served.engine)
    words, first = list[str](), _FIRST_HANDLES[shared]
    for rate in rates:
        count = round(rate * (1.0 if survey.tiny else _SECONDS))
        arrivals = prompts.arrivals(rate, count, vocab=served.info.vocab_size, seed=round(rate))
        limit_s = 4 * max(_SECONDS, arrivals[-1].at_s)
        found = drive(engine, arrivals, limit_s=limit_s, first=first)
        point = LoadPoint.of(rate, found, warm=count // 10, cut_s=limit_s)
        first += count
        survey.found(
            f"arrivals, {'shared' if shared else 'apart'}, {rate:g} requests/s",
            f"{point.done_s:.2f} done, latency {point.latency_s.mean:.3f} s, first token "
            f"{point.first_token_s.mean:.3f} s, P99 {point.first_token_s.p99:.3f} s",
            shared=shared,
            offered_s=rate,
            done_s=round(point.done_s, 2),
            latency_mean_s=round(point.latency_s.mean, 4),
            first_token_mean_s=round(point.first_token_s.mean, 4),
            first_token_p99_s=round(point.first_token_s.p99, 4),
            unfinished=point.unfinished,
        )
        words.append(f"{rate:g}: {point.done_s:.1f}")
    return f"requests/s done of those offered: {', '.join(words)}"
