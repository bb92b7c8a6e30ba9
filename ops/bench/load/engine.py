"""An open loop against an engine in this process: requests join when they are due, however slow it is."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from ops.bench.load.arrivals import Arrival, Served

from millstream_worker.engine.engine import Engine
from millstream_worker.engine.protocol.outputs import Step
from millstream_worker.engine.protocol.request import EngineRequest, SamplingSpec


def drive(
    engine: Engine[Any],
    arrivals: Sequence[Arrival],
    *,
    limit_s: float,
    first: int = 0,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> list[Served]:
    """Serve the arrivals, in their order, for at most `limit_s`; then the rest is aborted.

    The engine takes requests between steps, as its own process does: one that comes during a step waits for
    the step's end, and that wait counts. `first`: the handle of the first one. None may be used twice:
    without sharing, blocks are found by their handle.
    """
    served = [Served(arrival.at_s) for arrival in arrivals]
    coming = deque(enumerate(arrivals))
    start = clock()
    while coming or not engine.idle:
        now = clock() - start
        if now > limit_s:
            engine.abort(range(first, first + len(arrivals)))
            break
        while coming and coming[0][1].at_s <= now:
            number, arrival = coming.popleft()
            refused = engine.add(_request(first + number, arrival))
            assert refused is None, refused
        if engine.idle:
            sleep(min(coming[0][1].at_s, limit_s) - now if coming else 0.0)
            continue
        step = engine.step()
        if step is not None:
            _note(step, served, first, clock() - start)
    return served


def _request(handle: int, arrival: Arrival) -> EngineRequest:
    return EngineRequest(handle, arrival.prompt, arrival.max_tokens, SamplingSpec(temperature=0.0))


def _note(step: Step, served: Sequence[Served], first: int, now_s: float) -> None:
    for handle in step.handles:
        served[handle - first].take(1, now_s)
    for handle, _ in step.finished:
        served[handle - first].end_s = now_s
