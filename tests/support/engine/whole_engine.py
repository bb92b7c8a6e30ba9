"""A whole engine of this process on a device, and what it draws."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from millstream_worker.engine.assembly import build
from millstream_worker.engine.engine import Engine
from millstream_worker.engine.protocol.config import EngineConfig
from millstream_worker.engine.protocol.request import EngineRequest, SamplingSpec

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
    )
    engine, info = build(dataclasses.replace(config, **changes), report)
    assert info.device.startswith(device)
    return engine


def run(engine: Engine[Any], requests: Iterable[EngineRequest]) -> dict[int, list[int]]:
    """The tokens of all of them, which are there from the start, by handle."""
    for request in requests:
        assert engine.add(request) is None
    tokens: dict[int, list[int]] = {}
    while not engine.idle:
        step = engine.step()
        assert step is not None
        for handle, token in zip(step.handles, step.tokens, strict=True):
            tokens.setdefault(handle, []).append(token)
    engine.scheduler.check()
    return tokens


def tokens_of(engine: Engine[Any]) -> dict[int, list[int]]:
    """Ragged rows with a shared prefix, greedy and seeded, more than fit into the batch at once."""
    requests = []
    for handle in range(12):
        sampling = SamplingSpec(temperature=float(handle % 2), top_p=0.9, seed=handle)
        prompt = (*PREFIX[: handle * 2], *range(30, 33 + handle))
        requests.append(EngineRequest(handle, prompt, max_tokens=8 + handle, sampling=sampling))
    return run(engine, requests)
