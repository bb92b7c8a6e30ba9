"""Workloads of ops.bench on an engine in this process: tokens/s, step times, idle device, host time."""

from __future__ import annotations

import dataclasses
import statistics
import time
from typing import Any

import torch
from ops.bench.device_clock import TimedRunner, clock_of
from ops.bench.measures import Run, TokenRecorder
from ops.bench.workloads import Workload, make
from ops.gpu_survey.expected import VLLM_H200
from ops.gpu_survey.survey import Survey

from millstream_worker.engine.engine import Engine
from millstream_worker.engine.protocol.config import EngineInfo
from millstream_worker.engine.protocol.request import EngineRequest, SamplingSpec

GREEDY = SamplingSpec(temperature=0.0)
_WARM_TOKENS, _TINY_SCALE = 4, 0.1


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Served:
    """An engine that is ready, on the shape of `model`."""

    engine: Engine[Any]
    info: EngineInfo
    model: str


@dataclasses.dataclass(frozen=True, slots=True)
class _Pass:
    run: Run
    step_times: list[float]  # seconds


def run_workload(survey: Survey, served: Served, name: str, spec: SamplingSpec) -> str:
    """After as many rows of other prompts, with few tokens each."""
    engine, info = served.engine, served.info
    scale = _TINY_SCALE if survey.tiny else 1.0
    warm = make(name, info.vocab_size, scale, seed=-1)
    lengths = [min(_WARM_TOKENS, length) for length in warm.output_lengths]
    _pass(engine, dataclasses.replace(warm, output_lengths=lengths), spec, "warm")
    runner, clock = engine.runner, clock_of(torch.device(info.device))
    if clock is not None:
        engine.runner = TimedRunner(runner, clock)  # type: ignore[assignment]
    cpu = time.process_time()
    try:
        measured = _pass(engine, make(name, info.vocab_size, scale, seed=0), spec, f"{name} {spec}")
    finally:
        engine.runner = runner
    run, steps = measured.run, len(measured.step_times)
    host_ms = 1e3 * (time.process_time() - cpu) / steps
    idle = clock.times.idle_share if clock is not None else 0.0
    step_ms = 1e3 * statistics.median(measured.step_times)
    first_s = run.ttft_s()[0]
    single = name == "single"
    value = 1e3 * run.seconds / run.output_tokens if single else run.tokens_s
    survey.found(
        f"{name}, numbers",
        f"{value:,.2f}",
        workload=name,
        model=served.model,
        temperature=spec.temperature,
        top_p=spec.top_p,
        device=torch.cuda.get_device_name() if survey.device == "cuda" else "cpu",
        tokens_s=round(run.tokens_s, 1),
        steps=steps,
        median_step_ms=round(step_ms, 3),
        seconds=round(run.seconds, 3),
        ttft_p50_s=round(first_s, 3),
        idle=round(idle, 4),
        host_cpu_ms=round(host_ms, 3),
    )
    words = f"{value:,.2f} {'ms a token' if single else 'tokens/s'}"
    if spec is GREEDY and not survey.tiny and (theirs := VLLM_H200.get(served.model, {}).get(name)):
        words += f", {theirs / value if single else value / theirs:.2f} of vLLM on an H200"
    return (
        f"{words}; {steps} steps, median {step_ms:.2f} ms, {host_ms:.2f} ms of CPU each; "
        f"first tokens {first_s:.2f} s; device idle {idle:.1%}"
    )


def decode_without_waits(survey: Survey, served: Served) -> str:
    """Whoever waits for the device in a step fails, but for events, for which settle waits."""
    survey.need_cuda()
    torch.cuda.set_sync_debug_mode("error")
    try:
        workload = make("decode", served.info.vocab_size, _TINY_SCALE, seed=2)
        measured = _pass(served.engine, workload, GREEDY, "without waits")
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return f"{len(measured.step_times)} steps, {measured.run.tokens_s:,.0f} tokens/s"


def add_requests(served: Served, name: str, output_tokens: int, seed: int) -> int:
    """Queue the prompts of a workload, to be stepped by the caller. Returns how many they are."""
    prompts = make(name, served.info.vocab_size, 1.0, seed=seed).prompts
    _add(served.engine, prompts, [output_tokens] * len(prompts), GREEDY, f"{name} {seed}")
    return len(prompts)


def end(served: Served, count: int) -> None:
    """End the first `count` requests."""
    served.engine.abort(range(count))
    while not served.engine.idle:
        served.engine.step()


def _pass(engine: Engine[Any], workload: Workload, spec: SamplingSpec, salt: str) -> _Pass:
    recorder = TokenRecorder(len(workload.prompts), time.perf_counter())
    _add(engine, workload.prompts, workload.output_lengths, spec, salt)
    times, last = list[float](), time.perf_counter()
    while not engine.idle:
        step = engine.step()
        now = time.perf_counter()
        if step is not None:
            times.append(now - last)
            recorder.record_each(step.handles, now)
        last = now
    return _Pass(recorder.run(workload.output_lengths, len(times)), times)


def _add(engine: Engine[Any], prompts: Any, lengths: Any, spec: SamplingSpec, salt: str) -> None:
    for handle, (prompt, length) in enumerate(zip(prompts, lengths, strict=True)):
        seeded = dataclasses.replace(spec, seed=handle)
        refused = engine.add(EngineRequest(handle, tuple(prompt), length, seeded, salt=salt))
        assert refused is None, refused
