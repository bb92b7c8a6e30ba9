"""Steps of a whole model in each way that it can be run: whether they compute the same, how long they take
the device and the host, what the device does in them."""

from __future__ import annotations

import re
import statistics
import time
from collections import Counter
from functools import partial
from pathlib import Path

import torch
from gpu.parts.finding import NeedsCUDA, Survey
from gpu.parts.random_model import SHAPE, TINY, folder, random_weights
from gpu.parts.timing import BLOCK, plan_of
from ops.bench.device_clock import TimedRunner, clock_of
from support.engine.planning import greedy_loads
from support.engine.serving import eager_of, launch, logits_of

from millstream_worker.engine.brain.batch.plan import Plan
from millstream_worker.engine.runner.compiled.compile import compile_model
from millstream_worker.engine.runner.cuda_graphs.cuda import CudaRecorder
from millstream_worker.engine.runner.cuda_graphs.recording import record
from millstream_worker.engine.runner.cuda_graphs.steps import GraphLimits
from millstream_worker.engine.runner.forward import Eager
from millstream_worker.engine.runner.kv.storage import KVStorage
from millstream_worker.engine.runner.model.load import LoadedModel, load_model
from millstream_worker.engine.runner.runner import Runner
from millstream_worker.engine.runner.sampling.sampler import Sampler
from millstream_worker.engine.runner.self_check.findings import Findings

_TOLERANCE = 2e-2  # of the largest logit: rounding of bfloat16 through all layers
_MOST_SHOWN = 10  # kernels of a profile
_AROUND = ("Torch-Compiled Region", "## Call ", "ProfilerStep")  # ranges of a profile, not kernels


def eager(survey: Survey) -> None:
    _Ways(survey).run(compiled=False)


def compiled(survey: Survey) -> None:
    _Ways(survey).run(compiled=True)


class _Ways:
    """One model, run as it is loaded and then in other ways, over the same keys and values."""

    def __init__(self, survey: Survey) -> None:
        self.survey = survey
        self.rows = 4 if survey.tiny else 256
        self.plans = _plans(self.rows, survey.tiny)
        self.device = torch.device(survey.device)
        self.want: dict[str, torch.Tensor] = {}

    def run(self, *, compiled: bool) -> None:
        survey, shape = self.survey, TINY if self.survey.tiny else SHAPE
        torch.set_num_threads(4)
        with random_weights():
            started = time.perf_counter()
            place = folder(shape, survey.scratch / "models" / survey.name)
            dtype = torch.float32 if survey.tiny else torch.bfloat16
            loaded = load_model(str(place), dtype=dtype, device=self.device)
        took = f"{time.perf_counter() - started:.1f} s"
        survey.found(
            "model", f"{loaded.parameters / 1e6:,.1f} M weights in {took}; {'; '.join(loaded.notes)}"
        )
        runner = self.runner(loaded)
        self.want = {name: self.logits(runner, plan) for name, plan in self.plans.items()}
        way = "eager"
        if compiled:
            way = "compiled"
            survey.attempt("compile", partial(_compile, loaded, survey.scratch / "compiled"))
            runner = self.runner(loaded)
        self.measure(way, runner)
        survey.attempt(f"{way}, graphs", partial(self.record, runner))
        if not survey.tiny:
            self.measure(f"{way}, graphs", runner)

    def runner(self, loaded: LoadedModel) -> Runner:
        self.storage = KVStorage(loaded.layer_specs, self.rows * 24, BLOCK, loaded.dtype, self.device)
        sampler = Sampler(loaded.vocab_size, self.rows, self.device)
        for load in greedy_loads(range(self.rows)):
            sampler.load(load)
        return Runner(Eager(loaded, self.storage, sampler.last_tokens), sampler)

    def logits(self, runner: Runner, plan: Plan) -> torch.Tensor:
        """After the same keys and values, whatever steps have left there."""
        torch.manual_seed(1)
        for part in (*self.storage.keys, *self.storage.values):
            part.normal_()
        return logits_of(runner, plan)

    def measure(self, way: str, runner: Runner) -> None:
        for name, plan in self.plans.items():
            self.survey.attempt(f"{way}, {name}, the same", partial(self.same, name, runner))
            self.survey.attempt(f"{way}, {name}", partial(_step_times, self.device, runner, plan))
        for name in [*self.plans][-2:]:  # the largest decode step, and the mixed one
            words = re.sub(r"\W+", "-", f"{way} {name}")
            file = self.survey.out / f"{self.survey.name}-{words}.trace.json.gz"
            self.survey.attempt(
                f"{way}, {name}, profile", partial(_profile, self.device, runner, self.plans[name], file)
            )

    def same(self, name: str, runner: Runner) -> str:
        """As the first way. The steps before it were others: what they have left in vectors would show."""
        want, got = self.want[name], self.logits(runner, self.plans[name])
        off = float((got - want).abs().max() / want.abs().max())
        equal = int((got.argmax(-1) == want.argmax(-1)).sum())
        found = f"{equal} of {len(want)} tokens, off by {off:.1e} of the largest logit"
        if not off <= _TOLERANCE:
            raise AssertionError(found)
        return found

    def record(self, runner: Runner) -> str:
        if self.survey.tiny:
            raise NeedsCUDA
        said: list[str] = []
        runner.model = record(
            eager_of(runner),
            CudaRecorder(self.device),
            GraphLimits(self.rows, self.rows + 1024, 128),
            Findings(said.append),
        )
        return "; ".join(said)


def _plans(rows: int, tiny: bool) -> dict[str, Plan]:
    context, chunk = (19, 8) if tiny else (299, 256)
    chunks = rows // 64 or 1
    mixed = [(context, 1)] * (rows - chunks) + [(0, chunk)] * chunks
    decodes = {f"decode of {count}": plan_of([(context, 1)] * count) for count in (1, rows // 4, rows)}
    return decodes | {f"{rows - chunks} decode, {chunks} chunks of {chunk}": plan_of(mixed)}


def _compile(loaded: LoadedModel, cache: Path) -> str:
    said: list[str] = []
    compile_model(loaded, cache, said.append, most_tokens=8192, fall_back=said.append)
    return "; ".join(said)


def _step_times(device: torch.device, runner: Runner, plan: Plan) -> str:
    """With one step launched ahead, as an engine does."""
    clock = clock_of(device)
    timed = TimedRunner(runner, clock) if clock else runner
    steps = 3 if plan.token_count < 50 and clock is None else 20
    timed.settle(launch(timed, plan))
    ahead, launches = launch(timed, plan), []
    if clock is not None:
        clock.reset()
    started = time.perf_counter()
    for _ in range(steps):
        before = time.perf_counter()
        following = launch(timed, plan)
        launches.append(time.perf_counter() - before)
        timed.settle(ahead)
        ahead = following
    took = time.perf_counter() - started
    timed.settle(ahead)
    idle = f", device idle {clock.times.idle_share:.1%}" if clock else ""
    host = f"host {1e3 * statistics.median(launches):.2f} ms to launch"
    return f"{1e3 * took / steps:.2f} ms a step, {host}{idle}"


def _profile(device: torch.device, runner: Runner, plan: Plan, file: Path) -> str:
    """What the device did in one step, and how long it did nothing."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as profile:
        runner.settle(launch(runner, plan))
        if device.type == "cuda":
            torch.cuda.synchronize()
    profile.export_chrome_trace(str(file))
    kind = torch.autograd.DeviceType.CUDA if device.type == "cuda" else torch.autograd.DeviceType.CPU
    everything = [event for event in profile.events() if event.device_type == kind]
    events = [event for event in everything if not event.name.startswith(_AROUND)]
    counts, times = Counter[str](), Counter[str]()
    for event in events:
        took = event.time_range.elapsed_us() if device.type == "cuda" else event.self_cpu_time_total
        counts[event.name] += 1
        times[event.name] += took
    span = max(event.time_range.end for event in events) - min(event.time_range.start for event in events)
    top = [f"{counts[name]} x {name[:60]} {us:,.0f} us" for name, us in times.most_common(_MOST_SHOWN)]
    busy = sum(times.values())
    return f"{len(events)} kernels, {busy:,.0f} us of {span:,.0f} us: {'; '.join(top)}"
