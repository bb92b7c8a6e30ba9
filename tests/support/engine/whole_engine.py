"""A whole engine of this process on a device, and what it draws."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from millstream_worker.engine.assembly import build
from millstream_worker.engine.engine import Engine
from millstream_worker.engine.protocol.config import EngineConfig
from millstream_worker.engine.protocol.outputs import Refused
from millstream_worker.engine.protocol.request import EngineRequest, SamplingSpec
from support.engine.libraries import shared_cache

PREFIX = tuple(range(3, 23))


def engine_on(
    device: str, folder: Path, report: Callable[[str], None] = lambda _: None, **changes: Any
) -> Engine[Any]:
    config = EngineConfig(
        str(folder),
        dtype="float32",
        device=device,
        threads=1,
        kv_memory="2MiB",
        block_size=4,
        max_rows=6,
        max_step_tokens=24,
        compile_model="off",
        speculate="off",  # tests count steps
        cache_dir=shared_cache(),  # its library is compiled once for all tests
    )
    engine, info = build(dataclasses.replace(config, **changes), report)
    assert info.device.startswith(device)
    return engine


@dataclass(slots=True)
class Answers:
    """By handle; why a row ended, or was refused, as `field: message`."""

    tokens: dict[int, list[int]] = field(default_factory=dict)
    logprobs: dict[int, list[tuple[float, ...]]] = field(default_factory=dict)
    misfits: dict[int, str] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    steps: int = 0


def answers(engine: Engine[Any], requests: Iterable[EngineRequest]) -> Answers:
    """Of all of them, which are there from the start."""
    found = Answers()
    for request in requests:
        assert engine.add(request) is None
    while not engine.idle:
        for report in engine.take_compiled():
            if isinstance(report, Refused):
                found.reasons[report.handle] = f"{report.field}: {report.message}"
        if (step := engine.step()) is None:
            time.sleep(0.001)  # a grammar is compiled beside
            continue
        found.steps += 1
        for handle, token in zip(step.handles, step.tokens, strict=True):
            found.tokens.setdefault(handle, []).append(token)
        for index, logprob, _, top in step.logprobs:
            found.logprobs.setdefault(step.handles[index], []).append((logprob, *top))
        found.reasons |= dict(step.finished)
        found.misfits |= dict(step.misfits)
    engine.check()
    return found


def run(engine: Engine[Any], requests: Iterable[EngineRequest]) -> dict[int, list[int]]:
    """Their tokens."""
    return answers(engine, requests).tokens


def tokens_of(engine: Engine[Any]) -> dict[int, list[int]]:
    """Ragged rows with a shared prefix, greedy and seeded, more than fit into the batch at once."""
    requests = []
    for handle in range(12):
        sampling = SamplingSpec(temperature=float(handle % 2), top_p=0.9, seed=handle)
        prompt = (*PREFIX[: handle * 2], *range(30, 33 + handle))
        requests.append(EngineRequest(handle, prompt, max_tokens=8 + handle, sampling=sampling))
    return run(engine, requests)
