"""What a step consists of: which kernels the device runs, how long it runs none, and which of our functions
take the host's time."""

from __future__ import annotations

import cProfile
import pstats
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from ops.gpu_survey.parts.workload_runs import Served, add_requests, end
from ops.gpu_survey.survey import Survey

_STEPS, _HOST_STEPS = 6, 30
_MOST_NAMED = 14  # kernels, and functions
_LEAST_SHARE = 0.04  # of the host's time, for a function to be named


def decode_kernels(survey: Survey, served: Served) -> str:
    """Of decode steps of all rows."""
    survey.need_cuda()
    rows = add_requests(served, "decode", output_tokens=64, seed=7)
    for _ in range(30):
        served.engine.step()
    return _profiled(survey, served, "decode", rows)


def prefill_kernels(survey: Survey, served: Served) -> str:
    """Of steps that are full of prompts' tokens."""
    survey.need_cuda()
    rows = add_requests(served, "document", output_tokens=1, seed=8)
    served.engine.step()
    return _profiled(survey, served, "prefill", rows)


def _profiled(survey: Survey, served: Served, name: str, rows: int) -> str:
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        begun = time.perf_counter()
        for _ in range(_STEPS):
            served.engine.step()
        torch.cuda.synchronize()
        wall_ms = 1e3 * (time.perf_counter() - begun)
    end(served, rows)
    profile.export_chrome_trace(str(survey.out / f"{survey.name}-{name}.trace.json.gz"))
    kernels = [one for one in profile.events() or () if one.device_type == torch.autograd.DeviceType.CUDA]
    return summed(survey, name, kernels, wall_ms)


def summed(survey: Survey, step: str, kernels: Sequence[Any], wall_ms: float) -> str:
    """Record the kernels that take longest; returns what the device did in a step."""
    if not kernels:
        return f"the profiler saw no kernel; {wall_ms / _STEPS:.2f} ms a step with it"
    counts, times = Counter[str](), Counter[str]()
    for event in kernels:
        counts[event.name] += 1
        times[event.name] += event.time_range.elapsed_us()
    for name, us in times.most_common(_MOST_NAMED):
        each = f"{counts[name] / _STEPS:.0f} x {us / counts[name]:.1f} us"
        numbers = {"us": round(us / _STEPS, 1), "count": counts[name] / _STEPS}
        survey.found(f"{step}, kernel {name[:70]}", f"{us / _STEPS:,.0f} us a step, {each}", **numbers)
    span_us = max(one.time_range.end for one in kernels) - min(one.time_range.start for one in kernels)
    busy_ms, span_ms = (us / _STEPS / 1e3 for us in (sum(times.values()), span_us))
    return f"{len(kernels) / _STEPS:.0f} kernels a step, {busy_ms:.2f} of {span_ms:.2f} ms a step busy"


def host_shares(survey: Survey, served: Served) -> str:
    """Shares of the host's time of our functions, with what they call."""
    survey.need_cuda()
    rows = add_requests(served, "decode", output_tokens=90, seed=9)
    for _ in range(20):
        served.engine.step()
    cpu = time.process_time()
    for _ in range(_HOST_STEPS):
        served.engine.step()
    each_ms = 1e3 * (time.process_time() - cpu) / _HOST_STEPS
    profile = cProfile.Profile(time.process_time)
    profile.enable()
    for _ in range(_HOST_STEPS):
        served.engine.step()
    profile.disable()
    end(served, rows)
    stats: Any = pstats.Stats(profile)
    shares = [
        (entry[3] / stats.total_tt, f"{Path(file).stem}.{name}")
        for (file, _, name), entry in stats.stats.items()
        if "millstream_worker" in file and entry[3] > _LEAST_SHARE * stats.total_tt
    ]
    named = ", ".join(f"{name} {share:.0%}" for share, name in sorted(shares, reverse=True)[:_MOST_NAMED])
    return f"{each_ms:.2f} ms of CPU a step without the profiler; {named}"
