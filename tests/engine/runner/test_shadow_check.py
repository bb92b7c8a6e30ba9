"""What goes wrong in service is found, and not used any more: recorded steps, kernels, compiled code. The
tokens are right all the same where each step is checked; and where nothing is wrong, nothing changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from support.engine.cpu_recorder import CpuRecorder
from support.engine.planning import Segment, greedy_loads, pack
from support.engine.serving import Served, eager_of, launch, runner_of, serve
from support.engine.static_attention import PlainStatic
from torch import Tensor

from millstream_worker.engine.brain.batch.plan import Plan
from millstream_worker.engine.protocol.frames import Loading, Tried
from millstream_worker.engine.protocol.request import EngineRequest, SamplingSpec
from millstream_worker.engine.runner.attention.torch_backend import TorchAttention
from millstream_worker.engine.runner.compiled.compile import compile_model, restore_plain
from millstream_worker.engine.runner.cuda_graphs.recorder import Replay
from millstream_worker.engine.runner.cuda_graphs.recording import record
from millstream_worker.engine.runner.cuda_graphs.steps import GraphLimits
from millstream_worker.engine.runner.device.gpu import GIB, Gpu
from millstream_worker.engine.runner.forward import Eager, Forward
from millstream_worker.engine.runner.kv.storage import KVStorage
from millstream_worker.engine.runner.model.load import LoadedModel, load_model
from millstream_worker.engine.runner.runner import Runner
from millstream_worker.engine.runner.self_check.findings import Findings
from millstream_worker.engine.runner.shadow_check import ShadowCheck, wants_shadow

CPU = torch.device("cpu")
Load = Callable[[], LoadedModel]


@pytest.fixture
def load(checkpoint: Callable[[str], Path]) -> Load:
    """A model of torch's operations alone, whose attention can be recorded; loaded anew: it serves one
    storage."""

    def get() -> LoadedModel:
        loaded = load_model(str(checkpoint("llama")), dtype=torch.float32, device=CPU, attention="torch")
        return replace(loaded, attention="triton", attend_over=PlainStatic)

    return get


class Counted:
    """A `Forward` that has something go wrong before its step of that number."""

    def __init__(self, model: Forward, at: int, change: Callable[[], None]) -> None:
        self.eager, self.decodes, self.mixed = model.eager, 0, 0
        self._run, self._at, self._change = model.run, at, change

    def run(self, plan: Plan) -> Tensor:
        if self.decodes + self.mixed == self._at:
            self._change()
        self.mixed += plan.decodes < len(plan.query_lens)
        self.decodes += plan.decodes == len(plan.query_lens)
        return self._run(plan)


class Service:
    """One engine's service, with a shadow check of every so many decode steps."""

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        recorder: CpuRecorder | None = None,
        restore: Callable[[], None] | None = None,
        every: int = 1,
        wrong_at: int = -1,
        go_wrong: Callable[[], None] = lambda: None,
        speculate: str = "off",
    ) -> None:
        self.said: list[str] = []
        findings = Findings(self.said.append)

        def prepare(runner: Runner) -> None:
            model: Forward = eager_of(runner)
            if recorder is not None:
                model = record(model.eager, recorder, GraphLimits(rows=8, tokens=24, width=40), findings)
            self.shadow = ShadowCheck(model, findings, restore, every)
            self.steps = runner.model = Counted(self.shadow, wrong_at, go_wrong)

        blocks, asked = 30, requests()
        if speculate != "off":  # the same again and again, with blocks left for draft tokens
            blocks, asked = 300, [(step, replace(asked[4][1], handle=step)) for step in range(0, 150, 25)]
        self.served = serve(
            loaded, asked, blocks=blocks, pipeline_depth=1, speculate=speculate, prepare=prepare
        )

    @property
    def stepped_down(self) -> list[Tried]:
        return [down[0] for line in self.said if (down := Loading(line).stepped_down)]


def requests() -> list[tuple[int, EngineRequest]]:
    """Rows that join and leave at all times, greedy and seeded; more than 100 decode steps."""
    rows = []
    for handle in range(9):
        prompt = tuple((handle % 3 * 7 + place * 3) % 100 + 3 for place in range(5 + handle))
        sampling = SamplingSpec(temperature=float(handle % 2), seed=handle)
        rows.append((handle * 15, EngineRequest(handle, prompt, 20 + handle, sampling)))
    return rows


def plain(load: Load) -> Served:
    return serve(load(), requests(), blocks=30, pipeline_depth=1)


@pytest.mark.slow
def test_what_is_right_stays_as_it_is_bit_by_bit(load: Load) -> None:
    """Also the pool: what the check computes leaves nothing there."""
    unchecked = Service(load(), recorder=CpuRecorder(), every=10**9)
    checked = Service(load(), recorder=CpuRecorder())
    assert checked.served == unchecked.served
    assert checked.served.tokens == plain(load).tokens
    assert checked.shadow.compared == checked.steps.decodes > 100
    assert 0 < checked.shadow.worst < 1e-5
    assert not checked.stepped_down
    for there, alone in zip(pool(checked), pool(unchecked), strict=True):
        assert torch.equal(there, alone)


def test_steps_with_draft_tokens_are_right(load: Load) -> None:
    """Also where one of a row's tokens opens a block, which the check computes anew."""
    service = Service(load(), speculate="always")
    first, *others = service.served.tokens.values()
    assert all(tokens == first for tokens in others)
    assert service.served.stats.accepted_total > 0
    assert service.shadow.compared == service.steps.decodes
    assert not service.stepped_down


def pool(service: Service) -> list[Tensor]:
    storage = service.shadow.eager.storage
    return [*storage.keys, *storage.values]


def test_one_of_so_many_decode_steps_is_checked(load: Load) -> None:
    service = Service(load(), every=25)
    assert service.steps.mixed > 0
    assert service.shadow.compared == -(-service.steps.decodes // 25)
    assert service.said[0].startswith("1 of 25 decode steps is checked in service")


class Stuck(CpuRecorder):
    """From some time on its replays do nothing."""

    stuck = False

    def end(self) -> Replay:
        replay = super().end()
        return lambda: None if self.stuck else replay()

    def stick(self) -> None:
        self.stuck = True


def test_recorded_steps_that_go_wrong_cost_the_recordings(load: Load) -> None:
    recorder = Stuck()
    service = Service(load(), recorder=recorder, wrong_at=40, go_wrong=recorder.stick)
    assert service.stepped_down == [Tried.CUDA_GRAPHS]
    assert "a decode step of " in service.said[-1]
    assert "in service has other logits: rows are off by " in service.said[-1]
    assert isinstance(service.shadow.checked, Eager)
    assert isinstance(service.shadow.eager.attention, PlainStatic), "one thing at a time"
    assert service.served.tokens == plain(load).tokens


class Drifting:
    """Attention whose answers have a factor, on the device: recorded steps have it as well."""

    def __init__(self) -> None:
        self.factor = torch.ones(())

    def __call__(self, storage: KVStorage) -> PlainStatic:
        factor = self.factor

        class Backend(PlainStatic):
            def attend(self, *given: Any) -> Tensor:
                return super().attend(*given) * factor

        return Backend(storage)

    def drift(self) -> None:
        self.factor.fill_(1.3)


@pytest.mark.parametrize("recorder", [None, pytest.param(CpuRecorder(), marks=pytest.mark.slow)])
def test_a_kernel_that_goes_wrong_costs_our_kernels(recorder: CpuRecorder | None, load: Load) -> None:
    kernel = Drifting()
    loaded = replace(load(), attend_over=kernel)
    service = Service(loaded, recorder=recorder, wrong_at=40, go_wrong=kernel.drift)
    assert service.stepped_down == [Tried.ATTENTION]
    assert isinstance(service.shadow.eager.attention, TorchAttention)
    assert service.shadow.compared == service.steps.decodes - 1


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_compiler")
def test_compiled_code_that_goes_wrong_costs_the_compiled_code(load: Load, tmp_path: Path) -> None:
    wrong: list[None] = []

    def backend(graph: torch.fx.GraphModule, inputs: object) -> Callable[..., object]:
        return lambda *given: [part * 1.3 if wrong else part for part in graph(*given)]

    loaded = load()
    compile_model(loaded, tmp_path, lambda _: None, backends=[backend])
    service = Service(
        loaded,
        restore=partial(restore_plain, loaded),
        wrong_at=40,
        go_wrong=lambda: wrong.append(None),
    )  # a check leaves the compiled code in use: that it goes wrong would not be seen else
    assert service.stepped_down == [Tried.COMPILE_MODEL]
    assert isinstance(service.shadow.eager.attention, PlainStatic)
    assert service.served.tokens == plain(load).tokens


def test_rows_without_finite_logits_are_no_mistake(load: Load) -> None:
    loaded = load()
    with torch.no_grad():
        loaded.model.get_input_embeddings().weight[99] = torch.nan
    runner, _ = runner_of(loaded, blocks=9, block_size=4)
    said: list[str] = []
    runner.model = shadow = ShadowCheck(eager_of(runner), Findings(said.append), None, 1)
    sound, broken = (Segment(slot, [token], 0, [slot]) for slot, token in ((0, 7), (1, 99)))
    for rows in ([broken], [sound, broken]):
        step = runner.settle(launch(runner, pack(rows, 4, greedy_loads([0, 1]))))
        assert step.non_finite == (len(rows) - 1,)
    assert len(said) == 1
    assert shadow.compared == 1


def test_too_little_memory_for_the_check_costs_nothing_else(load: Load) -> None:
    loaded = load()
    runner, storage = runner_of(loaded, blocks=9, block_size=4)
    runner.model = shadow = ShadowCheck(eager_of(runner), Findings(print), None, 1)
    own = shadow.eager.attention

    def full(*_: object) -> None:
        if shadow.eager.attention is not own:
            raise torch.OutOfMemoryError("CUDA out of memory")

    loaded.model.lm_head.register_forward_pre_hook(full)
    before = storage.keys[0].clone()
    step = runner.settle(launch(runner, pack([Segment(0, [7], 0, [3])], 4, greedy_loads([0]))))
    assert len(step.tokens) == 1
    assert shadow.compared == 0
    assert shadow.eager.attention is own
    assert not torch.equal(storage.keys[0], before), "the step's own keys are there"


@pytest.mark.parametrize(
    ("gpu", "attention", "compiled", "wanted"),
    [
        (None, "native", True, False),  # a CPU's kernels are compiled for it, and tested
        (Gpu("NVIDIA H200", (9, 0), 140 * GIB, 139 * GIB), "triton", False, True),
        (Gpu("NVIDIA X", (12, 1), 140 * GIB, 139 * GIB), "torch", True, True),
        (Gpu("Tesla T4", (7, 5), 15 * GIB, 14 * GIB), "torch", False, False),  # nothing could be wrong
    ],
)
def test_who_is_checked(gpu: Gpu | None, attention: str, compiled: bool, wanted: bool, load: Load) -> None:
    runner, _ = runner_of(replace(load(), attention=attention), blocks=9, block_size=4)
    assert wants_shadow(gpu, eager_of(runner), compiled=compiled) == wanted
