"""CUDA graphs: what the recorder does, steps replayed against steps computed, and a device that no one waits
for. What is recorded, and with what the replays are filled, is tested on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from ops.bench.device_clock import TimedRunner, clock_of
from support.engine.mean_head import with_mean
from support.engine.planning import Segment, greedy_loads, pack, sharing
from support.engine.serving import eager_of, launch, logits_of, runner_of
from support.engine.whole_engine import engine_on, tokens_of
from support.models import checkpoints

from millstream_worker.engine.brain.batch.plan import Plan
from millstream_worker.engine.process import CannotLoad
from millstream_worker.engine.runner.compiled.compile import compile_model
from millstream_worker.engine.runner.gpu.cuda_graphs.cuda import CudaRecorder
from millstream_worker.engine.runner.gpu.cuda_graphs.recorder import CannotRecord
from millstream_worker.engine.runner.gpu.cuda_graphs.recording import record
from millstream_worker.engine.runner.gpu.cuda_graphs.steps import GraphLimits
from millstream_worker.engine.runner.model.load import LoadedModel, load_model
from millstream_worker.engine.runner.runner import Runner
from millstream_worker.engine.runner.self_check.findings import Findings

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype"),
    pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores"),
]

DEVICE = torch.device("cuda")
LIMITS = GraphLimits(rows=8, tokens=24, width=8)


@pytest.fixture
def load(tmp_path: Path) -> Callable[[str], LoadedModel]:
    def get(case: str) -> LoadedModel:
        folder = tmp_path / case
        if not folder.exists():
            checkpoints.build(case, tmp_path)
        return load_model(str(folder), dtype=torch.float32, device=DEVICE)

    return get


@pytest.fixture
def strict() -> Iterator[None]:
    """Whoever waits for the device fails."""
    torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode("default")


def recorded(loaded: LoadedModel) -> Runner:
    runner, _ = runner_of(loaded, blocks=40, block_size=4)
    runner.model = record(eager_of(runner), CudaRecorder(DEVICE), LIMITS, Findings(lambda _: None))
    return runner


def load_rows(runner: Runner) -> None:
    """Greedy ones, into the slots of `steps`."""
    rows = [Segment(slot, [3, 4], 0, [slot]) for slot in range(4)]
    runner.settle(launch(runner, pack(rows, 4, greedy_loads(range(4)))))


def steps() -> list[Plan]:
    """Prompts, decode steps of several sizes with and without a prefix group, and a step of everything."""
    prompts = [[5, 60, 33, 9, 120, 77, 4, 8, 90], [5, 60, 33, 9, 120, 77, 4, 8, 11], [7, 8, 9]]
    tables = [[1, 2, 3, 10], [1, 2, 4, 11], [20, 21, 22, 23]]
    first = [Segment(slot, prompts[slot], 0, tables[slot]) for slot in (0, 2)]
    rest = [Segment(1, prompts[1][8:], 8, tables[1])]
    decodes = [Segment(slot, [40 + slot], len(prompts[slot]), tables[slot]) for slot in range(3)]
    later = [Segment(slot, [50 + slot], len(prompts[slot]) + 1, tables[slot]) for slot in range(3)]
    last = [Segment(0, [3], 11, tables[0]), Segment(3, list(range(3, 20)), 0, [30, 31, 32, 33, 34])]
    plans = [pack(part, 4) for part in (first, rest, decodes, later, last)]
    plans[3] = sharing(plans[3], [(8, [0, 1])])
    return plans


def test_a_second_head_answers_beside_graphs(load: Callable[[str], LoadedModel]) -> None:
    loaded = with_mean(load("llama"))
    runner, (plain, _) = recorded(loaded), runner_of(with_mean(load("llama")), blocks=40, block_size=4)
    for lens in ([3, 5, 1], [1, 1, 1, 1]):
        segments = [
            Segment(slot, range(3, 3 + size), 0, [2 * slot, 2 * slot + 1]) for slot, size in enumerate(lens)
        ]
        plan = replace(pack(segments, 4), head="mean")
        want, found = logits_of(plain, plan), logits_of(runner, plan)
        assert found.shape == (len(lens), loaded.heads.body.width)
        torch.testing.assert_close(found, want, atol=2e-4, rtol=0)


@pytest.mark.parametrize("case", ["llama", "gemma2", "qwen3", "gpt2"])
def test_replayed_logits_are_those_of_computed_steps(case: str, load: Callable[[str], LoadedModel]) -> None:
    plain, runner = runner_of(load(case), blocks=40, block_size=4)[0], recorded(load(case))
    for plan in steps():
        want, found = logits_of(plain, plan), logits_of(runner, plan)
        torch.testing.assert_close(found, want, atol=2e-4, rtol=0)


def test_a_mixture_that_waits_for_its_router_is_not_recorded(load: Callable[[str], LoadedModel]) -> None:
    """In float32 torch asks the device how many rows each expert has."""
    with pytest.raises(CannotRecord):
        recorded(load("gpt_oss"))


def test_compiled_layers_are_recorded_as_well(load: Callable[[str], LoadedModel], tmp_path: Path) -> None:
    loaded = load("llama")
    compile_model(loaded, tmp_path / "compiled", lambda _: None)
    plain, runner = runner_of(load("llama"), blocks=40, block_size=4)[0], recorded(loaded)
    for plan in steps():
        torch.testing.assert_close(logits_of(runner, plan), logits_of(plain, plan), atol=2e-4, rtol=0)


def test_nobody_waits_in_a_launch(load: Callable[[str], LoadedModel], request: pytest.FixtureRequest) -> None:
    runner = recorded(load("llama"))
    load_rows(runner)
    for plan in steps():  # kernels are compiled
        runner.settle(launch(runner, plan))
    clock = clock_of(DEVICE)
    assert clock is not None
    timed = TimedRunner(runner, clock)
    request.getfixturevalue("strict")
    launched = [launch(timed, plan) for plan in steps()]
    torch.cuda.set_sync_debug_mode("default")
    assert [len(timed.settle(one).tokens) for one in launched] == [2, 1, 3, 3, 2]
    assert clock.times.steps == len(launched)
    assert clock.times.busy_s > 0


def test_replays_take_no_memory(load: Callable[[str], LoadedModel]) -> None:
    runner = recorded(load("qwen3"))
    load_rows(runner)
    for plan in steps() * 3:
        runner.settle(launch(runner, plan))
    before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    for _ in range(20):
        for plan in steps():
            runner.settle(launch(runner, plan))
    assert (torch.cuda.memory_allocated(), torch.cuda.memory_reserved()) == before


@torch.inference_mode()
def test_who_waits_is_named_and_a_broken_recording_is_dropped() -> None:
    recorder = CudaRecorder(DEVICE)
    number = torch.ones(1, device=DEVICE)
    with pytest.raises(CannotRecord, match="waits for values of the device"), recorder.strict():
        number.item()
    with recorder.apart():
        recorder.begin()
        number.add_(0)  # an empty recording is warned of
        with pytest.raises(RuntimeError):
            number.item()
        recorder.drop()
        recorder.begin()
        number.add_(1)
        again = recorder.end()
    before = number.item()
    again()
    assert number.item() == before + 1


def test_a_model_that_cannot_be_recorded_runs_unless_it_must_be(tmp_path: Path) -> None:
    folder = checkpoints.build("llama-dynamic", tmp_path)
    told: list[str] = []
    found = tokens_of(engine_on("cuda", folder, told.append))
    assert found == tokens_of(engine_on("cpu", folder))
    assert [line for line in told if line.startswith("no CUDA graphs")]
    with pytest.raises(CannotLoad, match="cuda_graphs 'on'"):
        engine_on("cuda", folder, cuda_graphs="on")
