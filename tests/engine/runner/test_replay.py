"""Steps of decoding rows whose calls are made again: the same answers to the last bit, and a way without.

One compiled model serves all cases; each has a runner, and recorded steps, of its own.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from support import checkpoints
from support.serving import Served, eager_of, serve
from torch._inductor.utils import clear_inductor_caches

from millstream_worker.engine.brain.batch.shared_prefixes import SharingCosts
from millstream_worker.engine.protocol.request import EngineRequest, SamplingSpec
from millstream_worker.engine.runner.compiled.compile import compile_model
from millstream_worker.engine.runner.model.load import LoadedModel, load_model
from millstream_worker.engine.runner.native import intercept
from millstream_worker.engine.runner.replay import call_recorder, cpu_replay
from millstream_worker.engine.runner.replay.call_recorder import CallRecorder, CannotReplay
from millstream_worker.engine.runner.replay.cpu_replay import CpuReplay, RecordedStep
from millstream_worker.engine.runner.replay.workspace import Workspace
from millstream_worker.engine.runner.runner import Runner

CPU = torch.device("cpu")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler"),
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("replay"),
]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadedModel]:
    kept = tmp_path_factory.mktemp("kept")
    folder = checkpoints.build("llama", tmp_path_factory.mktemp("model"))
    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as changes:
        changes.setenv("TORCHINDUCTOR_CACHE_DIR", str(kept))
        try:
            torch.set_num_threads(1)
            torch.compiler.set_stance("default")
            torch.compiler.reset()
            clear_inductor_caches()
            loaded = load_model(str(folder), dtype=torch.float32, device=CPU)
            compile_model(loaded, kept, lambda message: None)
            yield loaded
        finally:
            torch.compiler.set_stance("default")
            torch.compiler.reset()
            torch.set_num_threads(threads)


class Watch:
    """Records the steps of runners, and how often some were replayed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.said: list[str] = []
        self.replayed: list[int] = []
        self.runners: list[Runner] = []
        replay_calls = cpu_replay.replay_calls

        def counted(library: Any, step: RecordedStep, *mark: Any) -> bool:
            self.replayed.append(len(step.logits))
            return replay_calls(library, step, *mark)

        monkeypatch.setattr(cpu_replay, "replay_calls", counted)

    def prepare(self, runner: Runner) -> None:
        runner.model = cpu_replay.replayed(eager_of(runner), self.said.append)
        if isinstance(runner.model, CpuReplay):
            assert self.said.pop() == "decode steps are recorded and replayed"
        self.runners.append(runner)


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    return Watch(monkeypatch)


def run(
    loaded: LoadedModel, prepare: Callable[[Runner], None] = lambda runner: None, *, shared: int = 0
) -> Served:
    """Rows that start and end at different times, beginning with as many shared tokens."""
    sampling = SamplingSpec(temperature=0.0, top_logprobs=0)
    prompts = [tuple(range(3, 3 + shared)) + tuple(range(5 + n, 12 + 2 * n)) for n in range(6)]
    requests = [
        EngineRequest(handle, prompt, 5 + 4 * handle, sampling) for handle, prompt in enumerate(prompts)
    ]
    arrivals = [(2 * handle, request) for handle, request in enumerate(requests)]
    costs = SharingCosts(row=0, step=0) if shared else None
    return serve(loaded, arrivals, blocks=200, sharing=costs, prepare=prepare)


@pytest.mark.parametrize("shared", [0, 24])
def test_the_same_answers_to_the_last_bit(compiled: LoadedModel, watch: Watch, shared: int) -> None:
    want, got = run(compiled, shared=shared), run(compiled, watch.prepare, shared=shared)
    assert (got.tokens, got.logprobs, got.reasons) == (want.tokens, want.logprobs, want.reasons)
    assert watch.said == []
    assert {1, 2, 3, 4} <= set(watch.replayed)
    assert len(watch.replayed) > 3 * len(set(watch.replayed))  # most of them are not the first of their size


def test_a_size_is_compared_only_if_it_calls_something_else(
    compiled: LoadedModel, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare, compared = CpuReplay._compare, []

    def recorded(self: CpuReplay, step: RecordedStep) -> None:
        compared.append(len(step.logits))
        compare(self, step)

    monkeypatch.setattr(CpuReplay, "_compare", recorded)
    run(compiled, watch.prepare)
    assert len(compared) == 1
    assert len(set(watch.replayed)) > 3


def test_a_size_is_noted_when_it_comes_for_the_third_time(compiled: LoadedModel, watch: Watch) -> None:
    run(compiled, watch.prepare)
    [recorded] = [runner.model for runner in watch.runners]
    assert isinstance(recorded, CpuReplay)
    assert set(recorded._steps) == {
        rows for rows, times in recorded._seen.items() if times > cpu_replay._PASSED
    }
    assert all(times <= cpu_replay._PASSED + 1 for times in recorded._seen.values())


def test_a_call_that_was_not_noted_is_missed(
    compiled: LoadedModel, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What runs beside the calls is found by its effect, and no answer is wrong."""
    made = []

    def call(
        self: CallRecorder, function: Any, tensors: Sequence[torch.Tensor | None], numbers: Sequence[int]
    ) -> None:
        made.append(function)
        if len(made) == 3:
            function(*[None if tensor is None else tensor.data_ptr() for tensor in tensors], *numbers)
        else:
            record(self, function, tensors, numbers)

    record = CallRecorder.call
    monkeypatch.setattr(CallRecorder, "call", call)
    assert run(compiled, watch.prepare).tokens == run(compiled).tokens
    assert watch.said == ["CPU replay is off: a replayed step has another answer"]
    assert len(watch.replayed) == 1


def test_a_tensor_that_will_lie_elsewhere_is_refused(
    compiled: LoadedModel, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CallRecorder, "empty", lambda self, like, shape: like.new_empty(shape))
    assert run(compiled, watch.prepare).tokens == run(compiled).tokens
    [said] = watch.said
    assert said.startswith("CPU replay is off: a tensor [")
    assert watch.replayed == []


def test_functions_of_torchs_own_are_refused_by_name() -> None:
    """They write into memory that is ours: their answers would lie where they should."""
    before, module = object(), ModuleType("generated")
    vars(module).update(empty_strided_cpu=torch.empty_strided, extern_kernels=before)
    with call_recorder._changed(module, CallRecorder(Workspace(64), [], 1)._substitutes(module)):
        with pytest.raises(CannotReplay, match="compiled code calls torch's own addmm"):
            module.extern_kernels.addmm(out=None)
        assert module.empty_strided_cpu((2,), (1,), torch.float32).shape == (2,)
    assert module.extern_kernels is before
    assert module.empty_strided_cpu is torch.empty_strided


@pytest.mark.parametrize(
    ("place", "value", "problem"),
    [
        ((call_recorder, "_ENTRY"), "gone", "AttributeError: .*undefined symbol: gone"),
        ((call_recorder, "_COMPILED"), "other_", "a replayed step"),
    ],
)
def test_whatever_is_in_the_way(
    compiled: LoadedModel, watch: Watch, monkeypatch: pytest.MonkeyPatch, place: Any, value: Any, problem: str
) -> None:
    monkeypatch.setattr(*place, value)
    call_recorder._address.cache_clear()
    assert run(compiled, watch.prepare).tokens == run(compiled).tokens
    [said] = watch.said
    assert re.match(f"CPU replay is off: {problem}", said)
    assert not intercept._interceptors


def test_a_step_is_compared_on_spoilt_memory(
    compiled: LoadedModel, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that was not recorded may have an answer that is the same in every step of this size."""
    spoil, spoilt = Workspace.spoil, []

    def recorded(self: Workspace) -> None:
        spoil(self)
        spoilt.append(bool((self._memory[: self._used] == 0xFF).all()) and self._used > 0)

    monkeypatch.setattr(Workspace, "spoil", recorded)
    run(compiled, watch.prepare)
    assert spoilt == [True]


def test_sizes_that_need_too_much_memory_are_called_by_python(
    compiled: LoadedModel, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_replay, "workspace_bytes", lambda vocab_size: 6000)
    assert run(compiled, watch.prepare).tokens == run(compiled).tokens
    assert watch.said == []
    assert 0 < max(watch.replayed) < 4


def test_a_step_that_fails_is_computed_by_python(
    compiled: LoadedModel, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    replay_calls = cpu_replay.replay_calls

    def failing(library: Any, step: RecordedStep, *mark: Any) -> bool:
        return replay_calls(library, step, *mark) and not mark  # a comparison has none

    monkeypatch.setattr(cpu_replay, "replay_calls", failing)
    assert run(compiled, watch.prepare).tokens == run(compiled).tokens
    assert watch.said == []
    assert len(watch.replayed) > 3


def test_progress_is_marked_on_the_way(
    compiled: LoadedModel, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_replay, "_MARKED", 3)
    marks: list[int] = []

    def prepare(runner: Runner) -> None:
        runner._mark = eager_of(runner).mark = lambda: marks.append(len(watch.replayed))
        watch.prepare(runner)

    assert run(compiled, prepare).tokens == run(compiled).tokens
    assert watch.said == []
    assert len(watch.replayed) > 3
    assert marks.count(len(watch.replayed)) >= 5  # within one step, and after it


def test_large_steps_and_those_of_prompts_are_computed_as_before(
    compiled: LoadedModel, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_replay, "MOST_ROWS", 2)
    assert run(compiled, watch.prepare).tokens == run(compiled).tokens
    assert set(watch.replayed) == {1, 2}


def test_attention_of_torchs_is_called_by_python(tmp_path: Path, watch: Watch) -> None:
    folder = checkpoints.build("llama", tmp_path)
    loaded = load_model(str(folder), dtype=torch.float32, device=CPU, attention="torch")
    run(loaded, watch.prepare)
    assert watch.said == ["CPU replay is off: attention is not computed by our library"]
    assert watch.replayed == []


def test_a_model_that_is_not_compiled_is_called_by_python(tmp_path: Path, watch: Watch) -> None:
    """Nobody asks for it; it would be told."""
    loaded = load_model(str(checkpoints.build("llama", tmp_path)), dtype=torch.float32, device=CPU)
    want = run(loaded).tokens
    assert run(loaded, watch.prepare).tokens == want
    [said] = watch.said
    assert "is not ours" in said
