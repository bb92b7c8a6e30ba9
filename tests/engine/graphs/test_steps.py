"""Replayed steps against computed ones. What the recorder on the CPU has kept by value, a replay computes
with again: every step with other tokens, places and lengths would come out wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from support import serving
from support.planning import Segment, greedy_loads, pack
from support.recorded import CpuRecorder
from support.serving import Served, eager_of, logits_of, runner_of, serve
from support.static_attention import PlainStatic

from millstream_worker.engine.brain.batch.plan import Plan
from millstream_worker.engine.protocol.request import EngineRequest, SamplingSpec
from millstream_worker.engine.runner.cuda_graphs.recorder import CannotRecord
from millstream_worker.engine.runner.cuda_graphs.recording import record
from millstream_worker.engine.runner.cuda_graphs.steps import CudaGraphs, GraphLimits
from millstream_worker.engine.runner.kv.storage import KVStorage
from millstream_worker.engine.runner.model.load import LoadedModel
from millstream_worker.engine.runner.runner import Runner

Load = Callable[[str], LoadedModel]
LIMITS = GraphLimits(rows=8, tokens=24, width=40)


@pytest.fixture
def load_static(load: Load) -> Load:
    """As `load`, with a backend whose decode steps can be recorded."""
    return lambda case: replace(load(case), attend_over=PlainStatic)


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """What became of the steps of a recorded runner."""
    counts: Counter[str] = Counter()
    replay = CudaGraphs.replay

    def counted(self: CudaGraphs, plan: Plan) -> torch.Tensor | None:
        decode, logits = self._decode_for(plan), replay(self, plan)
        counts["computed" if logits is None else "mixed" if decode is None else "decode"] += 1
        return logits

    monkeypatch.setattr(CudaGraphs, "replay", counted)
    return counts


def recorded(loaded: LoadedModel, limits: GraphLimits = LIMITS, **pool: int) -> tuple[Runner, KVStorage]:
    runner, storage = runner_of(loaded, **pool)
    runner.model = record(eager_of(runner), CpuRecorder(), limits, lambda _: None)
    return runner, storage


def requests() -> list[tuple[int, EngineRequest]]:
    """Rows that join and leave at all times, greedy and seeded; some begin alike."""
    rows = []
    for handle in range(7):
        prompt = tuple((handle % 3 * 7 + place * 3) % 100 + 3 for place in range(5 + handle * 6))
        sampling = SamplingSpec(temperature=float(handle % 2), seed=handle)
        rows.append((handle // 2, EngineRequest(handle, prompt, 6 + handle * 2, sampling)))
    return rows


def serve_recorded(loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch, **limits: int) -> Served:
    """As `serve`, with a runner that replays."""
    given = GraphLimits(**{"rows": 8, "tokens": 24, "width": 40, **limits})
    with monkeypatch.context() as patch:
        patch.setattr(serving, "runner_of", lambda loaded, **pool: recorded(loaded, given, **pool))
        return serve(loaded, requests(), blocks=20, pipeline_depth=1)


@pytest.mark.parametrize("case", ["llama", "qwen3", "gemma2", "gpt_oss", "gpt2", "opt", "phi3-longrope"])
def test_replayed_steps_give_the_tokens_of_computed_ones(
    case: str, load_static: Load, replayed: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    want = serve(load_static(case), requests(), blocks=20)

    found = serve_recorded(load_static(case), monkeypatch)

    assert found.tokens == want.tokens
    assert found.stats.preemptions_total > 0
    assert replayed["decode"] > 5
    assert replayed["mixed"] > 5
    assert not replayed["computed"]


def test_a_backend_that_cannot_be_recorded_leaves_gaps_in_decode_steps_as_well(
    load: Load, replayed: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    want = serve(load("gemma2"), requests(), blocks=20)

    found = serve_recorded(load("gemma2"), monkeypatch)

    assert found.tokens == want.tokens
    assert set(replayed) == {"mixed"}


def test_steps_above_the_ladder_are_computed(
    load_static: Load, replayed: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    want = serve(load_static("llama"), requests(), blocks=20)

    found = serve_recorded(load_static("llama"), monkeypatch, rows=4, tokens=12, width=10)

    assert found.tokens == want.tokens
    assert replayed["computed"] > 0
    assert replayed["decode"] > 0


def test_padding_changes_nothing_of_the_storage(load_static: Load) -> None:
    """A step of 3 tokens in one of 4, and of 5 in one of 24, over a pool of numbers that must stay."""
    loaded = load_static("llama")
    runner, storage = recorded(loaded, blocks=9, block_size=4)
    for part in storage._parts():
        part.normal_()
    before = [part.clone() for part in storage._parts()]
    rows = [Segment(slot, [7 + slot], 2, [slot]) for slot in (4, 7, 2)]
    runner.launch(pack(rows, 4, greedy_loads([2, 4, 7])))
    runner.launch(pack([*rows[:1], Segment(5, [3, 4, 5, 6], 0, [5])], 4, greedy_loads([5])))

    written = [[4, 2], [7, 2], [2, 2], [5, 0], [5, 1], [5, 2], [5, 3]]
    for part, old in zip(storage._parts(), before, strict=True):
        for block, offset in written:
            assert not torch.equal(part[block, :, offset], old[block, :, offset])
            old[block, :, offset] = part[block, :, offset]
        assert torch.equal(part, old)


@pytest.mark.parametrize("case", ["llama", "mixtral"])
def test_a_row_without_numbers_is_gone_with_its_step(case: str, load_static: Load) -> None:
    """Also from what pads the steps after it."""
    loaded = load_static(case)
    with torch.no_grad():
        loaded.model.get_input_embeddings().weight[99] = torch.nan
    runner, _ = recorded(loaded, blocks=9, block_size=4)
    for count in (1, 6):  # tokens of a row: replayed whole, and with gaps
        sound, non_finite = (Segment(slot, [7] * count, 0, [slot, slot + 4]) for slot in (0, 1))
        non_finite = replace(non_finite, tokens=[99] * count)
        alone = runner.settle(runner.launch(pack([sound], 4, greedy_loads([0, 1, 2]))))
        both = runner.settle(
            runner.launch(pack([sound, non_finite, replace(non_finite, slot=2, blocks=[2, 6])], 4))
        )
        after = runner.settle(runner.launch(pack([sound, replace(non_finite, tokens=[8] * count)], 4)))

        assert both.non_finite == (1, 2)
        assert after.non_finite == ()
        assert alone.tokens[0] == both.tokens[0] == after.tokens[0]


def test_logits_of_any_places_in_any_order(load_static: Load) -> None:
    places = [(), (-1,), (0, 1, 2, 3, 4), (3, 1), (1, 1, 2, 4, 0)]
    plain, _ = runner_of(load_static("llama"), blocks=9, block_size=4)
    runner, _ = recorded(load_static("llama"), blocks=9, block_size=4)
    for wanted in places:
        plan = pack([Segment(0, [3, 9, 8, 77, 6], 0, [1, 2], wanted)], 4)
        assert torch.allclose(logits_of(runner, plan), logits_of(plain, plan), atol=1e-5)


def test_sizes_are_told_and_all_are_recorded(load_static: Load) -> None:
    told: list[str] = []
    marks: list[None] = []
    loaded, recorder = load_static("llama"), CpuRecorder()
    runner, _ = runner_of(loaded, blocks=9, block_size=4)
    eager_of(runner).mark = lambda: marks.append(None)

    runner.model = record(eager_of(runner), recorder, LIMITS, told.append)

    assert told[0] == "recording CUDA graphs: 4 sizes up to 8 rows; 2 sizes up to 24 tokens"
    assert told[1].startswith("recorded CUDA graphs in ")
    decodes, chains, gaps = 4 + 3, 2, len(loaded.layers)  # of one row there are no prefix groups
    assert recorder.recordings == decodes + chains * (gaps + 1)
    assert len(marks) == decodes + chains


def test_a_model_that_waits_for_the_device_is_refused_and_goes_on(load: Load) -> None:
    loaded = load("llama-dynamic")
    runner, _ = runner_of(loaded, blocks=9, block_size=4)
    plan = pack([Segment(0, [3, 9, 8, 77, 6], 0, [1, 2])], 4)
    want = logits_of(runner, plan)

    with pytest.raises(CannotRecord, match="waits for values of the device"):
        runner.model = record(eager_of(runner), CpuRecorder(), LIMITS, lambda _: None)

    assert torch.equal(logits_of(runner, plan), want)


def test_an_error_while_recording_is_a_reason_and_no_end(load: Load) -> None:
    loaded = load("llama")
    runner, _ = runner_of(loaded, blocks=9, block_size=4)
    plan = pack([Segment(0, [3, 9, 8, 77, 6], 0, [1, 2])], 4)
    want = logits_of(runner, plan)
    recorder = CpuRecorder()
    recorder.place = _broken  # type: ignore[method-assign]

    with pytest.raises(CannotRecord, match="RuntimeError: the driver is in a mood"):
        runner.model = record(eager_of(runner), recorder, LIMITS, lambda _: None)

    assert torch.equal(logits_of(runner, plan), want)
    assert recorder._tape is None, "it would record for ever"


def _broken(tensor: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("the driver is in a mood\nand says more")


def test_what_is_kept_by_value_would_be_seen(load_static: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check of the checks: a body that looks at its positions on the host."""
    want = serve(load_static("llama"), requests(), blocks=20)
    loaded = load_static("llama")
    rope = type(loaded.model.model.rotary_emb)
    honest = rope.forward

    def sly(self: torch.nn.Module, states: torch.Tensor, position_ids: torch.Tensor) -> object:
        return honest(self, states, torch.tensor(position_ids.tolist()))

    monkeypatch.setattr(rope, "forward", sly)
    monkeypatch.setattr(CpuRecorder, "strict", CpuRecorder.apart)

    assert serve_recorded(loaded, monkeypatch).tokens != want.tokens
