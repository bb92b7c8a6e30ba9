"""Our engine's loop in this process, without the queue around it."""

from __future__ import annotations

import time
from dataclasses import fields
from importlib.metadata import version
from typing import Any

from ops.bench.engines.adapters.interface import Setup
from ops.bench.measures import Run, TokenRecorder
from ops.bench.workloads import Workload

from millstream_worker.engine.assembly import build
from millstream_worker.engine.protocol.config import EngineConfig
from millstream_worker.engine.protocol.request import EngineRequest, SamplingSpec

BLOCK_SIZE = 16
MAX_ROWS = 256


class Millstream:
    def __init__(self, setup: Setup) -> None:
        self.version = version("millstream")
        given: dict[str, Any] = {"model": setup.folder, "device": setup.device, "threads": setup.threads}
        config = EngineConfig(**given | {"block_size": BLOCK_SIZE} | chosen(setup))
        self._engine, _ = build(config, lambda message: print(message, flush=True))

    def run(self, workload: Workload, salt: str) -> Run:
        pairs = zip(workload.prompts, workload.output_lengths, strict=True)
        greedy = SamplingSpec(temperature=0.0)
        recorder = TokenRecorder(len(workload.prompts), time.perf_counter())
        for handle, (prompt, length) in enumerate(pairs):
            request = EngineRequest(handle, tuple(prompt), length, greedy, salt=salt)
            refused = self._engine.add(request)
            assert refused is None, refused
        steps = 0
        while not self._engine.idle:
            step = self._engine.step()
            if step is None:
                continue
            steps += 1
            recorder.record_each(step.handles, time.perf_counter())
        return recorder.run(workload.output_lengths, steps)


def chosen(setup: Setup) -> dict[str, Any]:
    """Fields of EngineConfig: the benchmark's choice, overridden by the setup's own settings. On the CPU the
    cache holds every row at once, and a last block each: memory is the user's. A GPU is the engine's. The
    model is compiled at start, as a worker compiles it after a busy minute. Random weights repeat themselves:
    nothing is drafted. Raises ValueError for an unknown setting.
    """
    on_cpu = setup.device == "cpu"
    blocks = setup.kv_tokens // BLOCK_SIZE + setup.rows + 1
    own = {
        "kv_memory": str(blocks * BLOCK_SIZE * setup.kv_token_bytes) if on_cpu else "auto",
        "max_rows": setup.max_rows or MAX_ROWS,
        "compile_model": "on",
        "speculate": "off",
        "max_step_tokens": setup.max_step_tokens or (2048 if on_cpu else 8192),
    }
    known = {field.name for field in fields(EngineConfig)}  # another checkout's may lack some
    own = {name: value for name, value in own.items() if name in known}
    return own | engine_settings(setup.settings)


def engine_settings(text: str) -> dict[str, Any]:
    """Fields of EngineConfig, from `name=value` separated by commas. Raises ValueError for an unknown one."""
    return dict(_parsed(setting) for setting in text.split(",") if setting)


def _parsed(setting: str) -> tuple[str, Any]:
    name, _, value = setting.partition("=")
    kinds: dict[str, Any] = {field.name: type(field.default) for field in fields(EngineConfig)}
    kinds["model"] = str  # it has no default
    if name not in kinds:
        raise ValueError(f"no setting {name!r}; there are {', '.join(kinds)}")
    if kinds[name] is bool:
        if value not in ("on", "off"):
            raise ValueError(f"{name} is on or off, not {value!r}")
        return name, value == "on"
    return name, kinds[name](value)
