"""A compiled hybrid model, whose short steps are recorded: each step moves its states once."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from support.engine.libraries import share_headers
from support.engine.replaying import Noted, Watch, compiled_for_replay
from support.engine.serving import Served, eager_of, runner_of, serve

from millstream_worker.engine.brain.batch.plan import Plan
from millstream_worker.engine.protocol.request import EngineRequest, SamplingSpec
from millstream_worker.engine.runner.model.load import LoadedModel
from millstream_worker.engine.runner.replay import cpu_replay
from millstream_worker.engine.runner.runner import Runner
from millstream_worker.engine.runner.states.torch_states import TorchStates

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler"),
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("replay"),
]


@pytest.fixture(scope="module")
def folder(checkpoint: Callable[[str], Path]) -> Path:
    return checkpoint("qwen3_5_text")


@pytest.fixture(scope="module")
def compiled(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadedModel]:
    with compiled_for_replay(folder, share_headers(tmp_path_factory.mktemp("cache")) / "kept") as loaded:
        yield loaded


def run(
    loaded: LoadedModel, prepare: Callable[[Runner], None] = lambda runner: None, speculate: str = "off"
) -> Served:
    """Rows that start and end at different times; their prompts share tokens, and with each other's outputs
    they guess."""
    sampling = SamplingSpec(temperature=0.0, top_logprobs=0)
    prompts = [tuple(range(3, 20)) + (number,) * (number % 3) for number in range(8)]
    requests = [
        EngineRequest(handle, prompt, 16 + 4 * handle, sampling) for handle, prompt in enumerate(prompts)
    ]
    arrivals = [(3 * handle, request) for handle, request in enumerate(requests)]
    return serve(loaded, arrivals, blocks=300, prepare=prepare, speculate=speculate, max_rows=12)


@pytest.fixture(scope="module")
def want(compiled: LoadedModel) -> Served:
    return run(compiled)


@pytest.mark.parametrize("speculate", ["off", "always"])
def test_the_same_answers_to_the_last_bit(compiled: LoadedModel, want: Served, speculate: str) -> None:
    watch = Watch()
    got = run(compiled, watch, speculate)
    assert got.tokens == want.tokens
    assert watch.said == []
    assert len(watch.form.replayed) > 20
    if speculate == "off":
        assert got.logprobs == want.logprobs
    else:
        assert got.stats.drafted_total > 0


def test_a_step_that_fails_its_proof_has_moved_states_once(compiled: LoadedModel, want: Served) -> None:
    class Failing(Noted):
        def _on_spoilt_memory(self, step: cpu_replay.RecordedStep) -> torch.Tensor | None:
            super()._on_spoilt_memory(step)
            return None

    watch = Watch(form=Failing)
    assert run(compiled, watch).tokens == want.tokens
    assert watch.said == ["CPU replay is off: a replayed step has another answer"]


def test_a_recording_that_ends_early_has_moved_no_state(compiled: LoadedModel, want: Served) -> None:
    class Short(Noted):
        def _recorded(self, plan: Plan, size: tuple[int, int]) -> cpu_replay.RecordedStep:
            super()._recorded(plan, size)
            raise IndexError("of torch")

    watch = Watch(form=Short)
    assert run(compiled, watch).tokens == want.tokens
    assert watch.said == ["CPU replay is off: IndexError: of torch"]


def test_a_recorded_step_that_fails_half_way_is_an_error(compiled: LoadedModel) -> None:
    """It has moved the states of some modules, so that computing it again would be wrong."""

    class Failing(Noted):
        def _replay(self, plan: Plan, step: cpu_replay.RecordedStep) -> torch.Tensor | None:
            self._library = _Fails()  # type: ignore[assignment]
            return super()._replay(plan, step)

    with pytest.raises(RuntimeError, match="a replayed step failed, and has moved some recurrent states"):
        run(compiled, Watch(form=Failing))


class _Fails:
    def replay(self, begin: int, count: int, threads: int) -> bool:
        return False


def test_states_of_pytorchs_are_not_recorded(compiled: LoadedModel) -> None:
    runner, _ = runner_of(compiled, blocks=4, block_size=4)
    eager, said = eager_of(runner), list[str]()
    assert eager.state_storage is not None
    eager.states = TorchStates(eager.state_storage)
    assert cpu_replay.replayed(eager, said.append) is eager
    assert said == ["CPU replay is off: recurrent states are not advanced by our library"]
