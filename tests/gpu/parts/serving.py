"""A whole engine, as the benchmark sets it up, on some of its workloads; then with sampled tokens."""

from __future__ import annotations

import dataclasses
import time
from functools import partial
from typing import Any

import torch
from gpu.parts.finding import Survey
from gpu.parts.random_model import SHAPE, TINY, folder, random_weights
from ops.bench.device_clock import TimedRunner, clock_of
from ops.bench.measures import TokenRecorder
from ops.bench.workloads import Workload, make

from millstream_worker.engine.assembly import build
from millstream_worker.engine.engine import Engine
from millstream_worker.engine.protocol.config import EngineConfig, EngineInfo
from millstream_worker.engine.protocol.frames import Loading
from millstream_worker.engine.protocol.request import EngineRequest, SamplingSpec
from millstream_worker.engine.runner.self_check.findings import Findings
from millstream_worker.engine.runner.shadow_check import ShadowCheck

_WORKLOADS = ("decode", "shared", "shareddoc", "document")
_SCALE, _WARM_TOKENS = 0.5, 4
GREEDY = SamplingSpec(temperature=0.0)


def serve(survey: Survey) -> None:
    said: list[str] = []
    own: dict[str, Any] = {"max_rows": 256, "max_step_tokens": 8192, "compile_model": "on"}
    if survey.tiny:
        own = {"max_rows": 8, "kv_memory": "64MiB", "compile_model": "off"}
    place = folder(TINY if survey.tiny else SHAPE, survey.scratch / "models" / survey.name)
    cache = str(survey.scratch / "engine")
    started = time.perf_counter()
    with random_weights():
        config = EngineConfig(str(place), device=survey.device, cache_dir=cache, **{"speculate": "off"} | own)
        engine, info = build(config, said.append)
    if survey.tiny:  # a GPU that is not among the tested ones has it
        engine.runner.model = ShadowCheck(engine.runner.model, Findings(said.append), None, 10)
    survey.found("engine", f"ready in {time.perf_counter() - started:.1f} s; {'; '.join(said)}")
    names, scale = (("c",), 0.1) if survey.tiny else (_WORKLOADS, _SCALE)
    for name in names:
        survey.attempt(name, partial(_run, engine, info, name, scale, GREEDY))
    for spec in (SamplingSpec(), SamplingSpec(top_p=0.9)):
        what = f"{names[0]}, temperature 1, top_p {spec.top_p}"
        survey.attempt(what, partial(_run, engine, info, names[0], scale, spec))
    survey.attempt("check in service", partial(_shadow, engine, said))
    survey.attempt("nobody waits for the device", partial(_strict, survey, engine, info))


def _run(engine: Engine[Any], info: EngineInfo, name: str, scale: float, spec: SamplingSpec) -> str:
    """After as many rows of other prompts, with a few tokens each."""
    workload, warm = (make(name, info.vocab_size, scale, seed) for seed in (0, -1))
    lengths = [min(length, _WARM_TOKENS) for length in warm.output_lengths]
    _pass(engine, dataclasses.replace(warm, output_lengths=lengths), spec, "warm")
    runner, clock = engine.runner, clock_of(torch.device(info.device))
    if clock is not None:
        engine.runner = TimedRunner(runner, clock)
    found = _pass(engine, workload, spec, f"{workload.name} {spec.top_p} {spec.temperature}")
    engine.runner = runner
    return found + (f", device idle {clock.times.idle_share:.1%}" if clock is not None else "")


def _pass(engine: Engine[Any], workload: Workload, spec: SamplingSpec, salt: str) -> str:
    recorder = TokenRecorder(len(workload.prompts), time.perf_counter())
    for handle, (prompt, length) in enumerate(zip(workload.prompts, workload.output_lengths, strict=True)):
        seeded = dataclasses.replace(spec, seed=handle)
        refused = engine.add(EngineRequest(handle, tuple(prompt), length, seeded, salt=salt))
        assert refused is None, refused
    steps = 0
    while not engine.idle:
        step = engine.step()
        if step is not None:
            steps += 1
            recorder.record_each(step.handles, time.perf_counter())
    run = recorder.run(workload.output_lengths, steps)
    each = f"{steps} steps of {1e3 * run.seconds / steps:.1f} ms"
    return f"{workload.what}: {run.tokens_s:,.0f} tokens/s, {each}, first tokens {run.ttft_s()[0]:.2f} s"


def _shadow(engine: Engine[Any], said: list[str]) -> str:
    """What it has found in the workloads."""
    shadow, words = engine.runner.model, [line for line in said if Loading(line).stepped_down]
    if words:
        raise AssertionError("; ".join(words))
    if not isinstance(shadow, ShadowCheck):
        return "off: such a device has been tested"
    assert shadow.compared, "no decode step was compared"
    return f"{shadow.compared} decode steps compared, rows off by at most {shadow.worst:.1e}"


def _strict(survey: Survey, engine: Engine[Any], info: EngineInfo) -> str:
    """Whoever does is an error, but for events of the device, which settle waits for."""
    survey.need_cuda()
    model = engine.runner.model
    if isinstance(model, ShadowCheck):  # which waits for what it compares
        engine.runner.model = model.checked
    torch.cuda.set_sync_debug_mode("error")
    try:
        return _pass(engine, make("decode", info.vocab_size, 0.1, seed=2), GREEDY, "strict")
    finally:
        torch.cuda.set_sync_debug_mode("default")
        engine.runner.model = model
