"""Steps of decoding rows whose calls are made again: the same answers to the last bit, and a way without.

One compiled model serves all cases; each has a runner, and recorded steps, of its own.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support.engine.libraries import share_headers
from support.engine.replaying import Noted, Watch, compiled_for_replay
from support.engine.serving import Served, eager_of, logits_of, runner_of, serve

from millstream_worker.engine.brain.batch.plan import Plan, packed_plan
from millstream_worker.engine.brain.batch.shared_prefixes import SharingCosts
from millstream_worker.engine.protocol.request import EngineRequest, SamplingSpec
from millstream_worker.engine.runner.model.load import LoadedModel, load_model
from millstream_worker.engine.runner.native import intercept
from millstream_worker.engine.runner.native.library import Library
from millstream_worker.engine.runner.replay import call_recorder, cpu_replay
from millstream_worker.engine.runner.replay.call_recorder import CallRecorder, CannotReplay
from millstream_worker.engine.runner.replay.cpu_replay import RecordedStep
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
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return share_headers(tmp_path_factory.mktemp("cache")) / "kept"


@pytest.fixture(scope="module")
def folder(checkpoint: Callable[[str], Path]) -> Path:
    return checkpoint("llama")


@pytest.fixture(scope="module")
def compiled(kept: Path, folder: Path) -> Iterator[LoadedModel]:
    with compiled_for_replay(folder, kept) as loaded:
        yield loaded


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


@pytest.fixture(scope="module")
def want(compiled: LoadedModel) -> Served:
    return run(compiled)


def test_machine_code(want: Served, kept: Path, folder: Path) -> None:
    plain = load_model(str(folder), dtype=torch.float32, device=CPU)
    assert run(plain).tokens == want.tokens
    assert list(kept.rglob("*.so")), "nothing is there for the next start"
    assert kept.stat().st_mode & 0o077 == 0, "others may put code there"


@pytest.mark.parametrize("shared", [0, 24])
def test_the_same_answers_to_the_last_bit(compiled: LoadedModel, shared: int) -> None:
    watch = Watch()
    want, got = run(compiled, shared=shared), run(compiled, watch, shared=shared)
    assert (got.tokens, got.logprobs, got.reasons) == (want.tokens, want.logprobs, want.reasons)
    assert watch.said == []
    replayed = watch.form.replayed
    assert {(rows, rows) for rows in (2, 3, 4)} <= set(replayed)
    assert len(replayed) > 3 * len(set(replayed))  # most of them are not the first of their size


def test_a_size_is_compared_on_spoilt_memory_if_its_calls_differ(
    compiled: LoadedModel,
) -> None:
    """A call that was not recorded may have an answer that is the same in every step of this size."""
    spoilt = []

    class Spoilt(Workspace):
        def spoil(self) -> None:
            super().spoil()
            spoilt.append(bool((self._memory[: self._used] == 0xFF).all()) and self._used > 0)

    def change(form: Noted) -> None:
        form._workspace = Spoilt(2**24)

    watch = Watch(change)
    run(compiled, watch)
    assert spoilt == [True]
    assert len(set(watch.form.replayed)) > 2


class Logged:
    """A loaded model that notes how many threads are to compute its heads; one does, as it was compiled."""

    def __init__(self, loaded: LoadedModel) -> None:
        self.threads: list[int] = []
        self._loaded = loaded

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loaded, name)

    def heads(self, name: str, *inputs: torch.Tensor) -> torch.Tensor:
        self.threads.append(torch.get_num_threads())
        torch.set_num_threads(1)
        return self._loaded.heads(name, *inputs)


def test_a_recording_is_made_and_compared_by_as_many_threads(compiled: LoadedModel) -> None:
    """Other processes may have taken a core between the two: fewer threads round otherwise."""
    logged = Logged(compiled)

    def change(form: Noted) -> None:
        form._threads = 2
        form._loaded = logged  # type: ignore[assignment]

    run(compiled, watch := Watch(change))
    assert watch.said == []
    assert set(logged.threads) == {2}
    assert len(logged.threads) > len(watch.form._steps)


def test_a_size_is_noted_when_it_comes_for_the_third_time(compiled: LoadedModel) -> None:
    watch = Watch()
    run(compiled, watch)
    seen = watch.form._seen
    assert set(watch.form._steps) == {size for size, times in seen.items() if times > cpu_replay._PASSED}
    assert all(times <= cpu_replay._PASSED + 1 for times in seen.values())


def test_a_recording_is_not_proved_by_its_own_inputs(compiled: LoadedModel) -> None:
    watch = Watch()
    runner, _ = runner_of(compiled, blocks=64, block_size=4)
    watch(runner)
    lens, ends = np.ones(2, np.int64), np.full(2, 20)
    for number in (*[0] * 6, 1):
        logits_of(runner, step_of(lens, ends, 2, np.random.default_rng(number)))
        assert bool(watch.form._compared) == (number == 1)
    assert watch.form.replayed == [(2, 2)]  # with other tokens


class Missing(CallRecorder):
    """Does not see one of the calls."""

    def call(self, function: Any, tensors: Sequence[torch.Tensor | None], numbers: Sequence[int]) -> None:
        super().call(function, tensors, numbers)
        if len(self._calls) == 3:
            self._calls.pop()


class Elsewhere(CallRecorder):
    """Tensors lie where they will not lie in the next step."""

    def empty(self, like: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        return like.new_empty(shape)


class OfAnotherTorch(CallRecorder):
    """A name is gone."""

    def _recording(self, function: Callable[..., Any]) -> Callable[..., Any]:
        raise AttributeError("undefined symbol: gone")


@pytest.mark.parametrize(
    ("recorder", "problem"),
    [
        (Missing, "a replayed step has another answer"),
        (Elsewhere, "a tensor \\["),
        (OfAnotherTorch, "AttributeError: undefined symbol: gone"),
    ],
)
def test_what_cannot_be_recorded_is_computed_by_python(
    compiled: LoadedModel, want: Served, recorder: type[CallRecorder], problem: str
) -> None:
    """What runs beside the calls is found by its effect, and no answer is wrong."""
    watch = Watch(recorder=recorder)
    assert run(compiled, watch).tokens == want.tokens
    [said] = watch.said
    assert re.match(f"CPU replay is off: {problem}", said)
    assert watch.form._steps == {}
    assert not intercept._interceptors


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


def less_memory(form: Noted) -> None:
    form._workspace = Workspace(6000)


def fewer_tokens(form: Noted) -> None:
    form._most_tokens = 2


def a_library_that_fails(form: Noted) -> None:
    form._library = Calls(form._library, fails_at=2)  # the first is a comparison's


@pytest.mark.parametrize(
    ("change", "sizes"), [(less_memory, range(1, 4)), (fewer_tokens, [2]), (a_library_that_fails, range(99))]
)
def test_what_is_too_large_or_fails_is_computed_by_python(
    change: Callable[[Noted], None], sizes: Sequence[int], compiled: LoadedModel, want: Served
) -> None:
    watch = Watch(change)
    assert run(compiled, watch).tokens == want.tokens
    assert watch.said == []
    assert max(tokens for tokens, _ in watch.form.replayed) in sizes
    if isinstance(watch.form._library, Calls):
        assert len(watch.form._library.counts) > 1


class Calls:
    """A library that fails from its n-th call on."""

    def __init__(self, library: Library | None = None, fails_at: int = 10**9) -> None:
        self.counts: list[int] = []
        self.replayed_arguments = library.replayed_arguments if library else 0
        self._library, self._fails_at = library, fails_at

    def replay(self, begin: int, count: int, threads: int) -> bool:
        self.counts.append(count)
        sound = self._library is None or self._library.replay(begin, count, threads)
        return sound and len(self.counts) < self._fails_at


def test_progress_is_marked_on_the_way() -> None:
    calls = np.zeros((1100, 21), np.int64)
    step = RecordedStep(calls[:0, 0], calls[:0, 0], calls[:0, 0], torch.zeros(0), calls)
    library, marks = Calls(), list[int]()
    assert cpu_replay.replay_calls(library, step, lambda: marks.append(sum(library.counts)))
    assert (library.counts, marks) == ([512, 512, 76], [512, 1024, 1100])
    assert not cpu_replay.replay_calls(Calls(fails_at=2), step)


def test_steps_of_several_tokens_a_row_share_recordings(compiled: LoadedModel) -> None:
    """Rows that decode beside chunks of other lengths, of which some give no logits: a multiple of four of
    each is computed."""
    chance = np.random.default_rng(0)
    alone, _ = runner_of(compiled, blocks=64, block_size=4)
    watch = Watch()
    runner, _ = runner_of(compiled, blocks=64, block_size=4)
    watch(runner)
    ends = np.full(5, 20)
    for both in (alone, runner):
        logits_of(both, step_of(np.full(5, 20), ends, 5, np.random.default_rng(1)))
    for number in range(24):
        lens = np.concatenate(([1, 1], chance.integers(2, 6, 3)))
        ends = ends + lens if number % 4 else np.full(5, 20) + lens
        sampling = int(chance.integers(0, 6))
        plan = step_of(lens, ends, sampling, np.random.default_rng(number))
        assert torch.equal(logits_of(runner, plan), logits_of(alone, plan))
    replayed = watch.form.replayed
    assert len(replayed) > 8
    assert all(tokens % 4 == logits % 4 == 0 for tokens, logits in replayed)


def step_of(
    lens: NDArray[np.int64], ends: NDArray[np.int64], sampling: int, chance: np.random.Generator
) -> Plan:
    """Of rows with eleven blocks of four each; the last `sampling` of them give logits."""
    plan = packed_plan(lens, ends, np.arange(len(lens) * 11).reshape(len(lens), 11), 4, samples=True)
    first = len(lens) - sampling
    return replace(
        plan,
        tokens=chance.integers(0, 50, len(plan.tokens)).astype(np.int32),
        logit_indices=plan.logit_indices[first:],
        logit_segments=plan.logit_segments[first:],
        output_indices=plan.output_indices[first:],
        noise=plan.noise[first:],
    )


def test_what_is_not_ours_is_called_by_python(folder: Path) -> None:
    """Nobody asks for a model that is not compiled; it would be told."""
    loaded = load_model(str(folder), dtype=torch.float32, device=CPU)
    watch, want = Watch(), run(loaded).tokens
    assert run(loaded, watch).tokens == want
    [said] = watch.said
    assert "is not ours" in said
    loaded = load_model(str(folder), dtype=torch.float32, device=CPU, attention="torch")
    runner, _ = runner_of(loaded, blocks=4, block_size=4)
    assert cpu_replay.replayed(eager_of(runner), watch.said.append) is runner.model
    assert watch.said[1:] == ["CPU replay is off: attention is not computed by our library"]
