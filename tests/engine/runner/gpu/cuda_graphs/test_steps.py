"""Replayed steps against computed ones. What the recorder on the CPU has kept by value, a replay computes
with again: every step with other tokens, places and lengths would come out wrong."""

from __future__ import annotations

import re
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from support.engine.cpu_recorder import CpuRecorder
from support.engine.planning import Segment, greedy_loads, pack
from support.engine.serving import Served, eager_of, launch, logits_of, runner_of, serve
from support.engine.static_attention import PlainStatic

from millstream_worker.engine.brain.batch.plan import Plan
from millstream_worker.engine.protocol.request import EngineRequest, SamplingSpec
from millstream_worker.engine.runner.gpu.cuda_graphs import steps
from millstream_worker.engine.runner.gpu.cuda_graphs.recorder import CannotRecord, Replay
from millstream_worker.engine.runner.gpu.cuda_graphs.recording import record
from millstream_worker.engine.runner.gpu.cuda_graphs.steps import CudaGraphs, GraphLimits
from millstream_worker.engine.runner.kv.storage import KVStorage
from millstream_worker.engine.runner.model.load import LoadedModel
from millstream_worker.engine.runner.runner import Runner
from millstream_worker.engine.runner.self_check.findings import Findings

Load = Callable[[str], LoadedModel]
LIMITS = GraphLimits(rows=8, tokens=24, width=40)
SILENT = Findings(lambda _: None)


@pytest.fixture
def load_static(load: Load) -> Load:
    """As `load`, with a backend whose decode steps can be recorded."""
    return lambda case: replace(load(case), attend_over=PlainStatic)


class Counted:
    """What became of the steps of a recorded model."""

    def __init__(self, graphs: CudaGraphs) -> None:
        self._graphs = graphs
        self.counts: Counter[str] = Counter()

    def run(self, plan: Plan) -> torch.Tensor:
        recorded = self._graphs.recorded_for(plan)
        kind = "computed" if recorded is None else "mixed" if recorded.size.prompts else "decode"
        self.counts[kind] += 1
        return self._graphs.run(plan)


def recorded(loaded: LoadedModel, **pool: int) -> tuple[Runner, KVStorage]:
    runner, storage = runner_of(loaded, **pool)
    runner.model = record(eager_of(runner), CpuRecorder(), LIMITS, SILENT)
    return runner, storage


def requests() -> list[tuple[int, EngineRequest]]:
    """Rows that join and leave at all times, greedy and seeded; some begin alike."""
    rows = []
    for handle in range(7):
        prompt = tuple((handle % 3 * 7 + place * 3) % 100 + 3 for place in range(5 + handle * 6))
        sampling = SamplingSpec(temperature=float(handle % 2), seed=handle)
        rows.append((handle // 2, EngineRequest(handle, prompt, 6 + handle * 2, sampling)))
    return rows


def serve_recorded(
    loaded: LoadedModel,
    limits: GraphLimits = LIMITS,
    recorder: type[CpuRecorder] = CpuRecorder,
    findings: Findings = SILENT,
) -> tuple[Served, Counter[str]]:
    """Served by a runner that replays, and what became of its steps."""
    counted: list[Counted] = []

    def prepare(runner: Runner) -> None:
        counted.append(Counted(record(eager_of(runner), recorder(), limits, findings)))
        runner.model = counted[0]

    served = serve(loaded, requests(), blocks=20, pipeline_depth=1, prepare=prepare)
    return served, counted[0].counts


SLOW = [
    pytest.param(case, marks=pytest.mark.slow)
    for case in ("gpt_oss", "qwen3", "gpt2", "opt", "phi3-longrope", "gemma4_text")
]


@pytest.mark.parametrize("case", ["llama", "gemma2", *SLOW])
def test_replayed_steps_give_the_tokens_of_computed_ones(case: str, load_static: Load) -> None:
    want = serve(load_static(case), requests(), blocks=20)
    found, replayed = serve_recorded(load_static(case))
    assert found.tokens == want.tokens
    assert found.stats.preemptions_total > 0
    assert replayed["decode"] > 5
    assert replayed["mixed"] > 5
    assert not replayed["computed"]


def test_a_backend_without_static_steps_is_not_recorded(load: Load) -> None:
    runner, _ = runner_of(load("gemma2"), blocks=9, block_size=4)
    with pytest.raises(CannotRecord, match=r"^attention \(torch\) computes from values of the host$"):
        record(eager_of(runner), CpuRecorder(), LIMITS, SILENT)


@pytest.mark.parametrize(
    ("limits", "prompts"), [(GraphLimits(rows=4, tokens=12, width=10), steps.MOST_PROMPTS), (LIMITS, 1)]
)
def test_steps_above_the_ladder_or_of_more_prompts_are_computed(
    limits: GraphLimits, prompts: int, load_static: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "MOST_PROMPTS", prompts)
    monkeypatch.setattr(steps, "PROMPT_TOKENS", limits.tokens)
    want = serve(load_static("llama"), requests(), blocks=20)

    found, replayed = serve_recorded(load_static("llama"), limits)

    assert found.tokens == want.tokens
    assert min(replayed["computed"], replayed["decode"]) > 0


@pytest.mark.parametrize("case", ["llama", "mixtral"])
def test_a_row_without_numbers_is_gone_with_its_step(case: str, load_static: Load) -> None:
    """Also from what pads the steps after it."""
    loaded = load_static(case)
    with torch.no_grad():
        loaded.model.get_input_embeddings().weight[99] = torch.nan
    runner, _ = recorded(loaded, blocks=9, block_size=4)
    for count in (1, 6):  # tokens of a row
        sound, non_finite = (Segment(slot, [7] * count, 0, [slot, slot + 4]) for slot in (0, 1))
        non_finite = replace(non_finite, tokens=[99] * count)
        alone = runner.settle(launch(runner, pack([sound], 4, greedy_loads([0, 1, 2]))))
        both = runner.settle(
            launch(runner, pack([sound, non_finite, replace(non_finite, slot=2, blocks=[2, 6])], 4))
        )
        after = runner.settle(launch(runner, pack([sound, replace(non_finite, tokens=[8] * count)], 4)))

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

    runner.model = record(eager_of(runner), recorder, LIMITS, Findings(told.append))

    assert told[0] == "recording CUDA graphs"
    assert re.fullmatch(
        r"recorded CUDA graphs in \S+ s: 4 sizes up to 8 rows; 2 sizes up to 24 tokens; "
        r"they take 0 MiB, 0 MiB are free, a step may need 0 MiB",
        told[1],
    )
    decodes, mixed = 4 + 3, 2  # of one row there are no prefix groups
    assert recorder.recordings == len(marks) == decodes + mixed


class Broken(CpuRecorder):
    def end(self) -> Replay:
        super().end()
        raise RuntimeError("the driver is in a mood\nand says more")


@pytest.mark.parametrize(
    ("case", "recorder", "reason"),
    [
        ("llama-dynamic", CpuRecorder(), "waits for values of the device"),
        ("llama", Broken(), "RuntimeError: the driver is in a mood and says more$"),
    ],
)
def test_a_model_that_cannot_be_recorded_goes_on(
    case: str, recorder: CpuRecorder, reason: str, load_static: Load
) -> None:
    runner, _ = runner_of(load_static(case), blocks=9, block_size=4)
    plan = pack([Segment(0, [3, 9, 8, 77, 6], 0, [1, 2])], 4)
    want = logits_of(runner, plan)
    with pytest.raises(CannotRecord, match=reason):
        runner.model = record(eager_of(runner), recorder, LIMITS, SILENT)
    assert torch.equal(logits_of(runner, plan), want)
    assert recorder._tape is None, "it would record for ever"


class Careless(CpuRecorder):
    """Does not see who looks at values on the host."""

    strict = CpuRecorder.apart


def careless(loaded: LoadedModel, at: Callable[[int], bool]) -> Runner:
    """Of a body that looks at its positions on the host, in steps of such sizes: what is kept by value is
    wrong for other positions."""
    rope = loaded.model.model.rotary_emb
    honest = rope.forward

    def forward(states: torch.Tensor, position_ids: torch.Tensor) -> object:
        kept = torch.tensor(position_ids.tolist()) if at(position_ids.shape[1]) else position_ids
        return honest(states, kept)

    rope.forward = forward
    return runner_of(loaded, blocks=9, block_size=4)[0]


@pytest.mark.parametrize(
    ("at", "says"),
    [
        (lambda tokens: tokens <= 8, "of steps with prompts only: a recorded step of 1 rows and 1 tokens"),
        (lambda tokens: tokens > 8, "of decode steps only: a recorded step of 1 rows and 4 tokens has"),
    ],
)
def test_wrongly_replayed_steps_disable_only_their_kind(
    at: Callable[[int], bool], says: str, load_static: Load
) -> None:
    findings = Findings(lambda _: None)
    runner = careless(load_static("llama"), at)
    graphs = record(eager_of(runner), Careless(), LIMITS, findings)
    [reason] = findings.fallbacks
    assert f"CUDA graphs {says}" in reason
    rows, tokens = graphs.sizes
    assert bool(rows) != bool(tokens)
    assert findings.checks[0].startswith("CUDA graphs off by at most ")


def test_if_all_are_replayed_wrongly_none_is(load_static: Load) -> None:
    runner = careless(load_static("llama"), lambda tokens: True)
    with pytest.raises(CannotRecord, match=r"^a recorded step of 1 rows and \d tokens has other logits"):
        record(eager_of(runner), Careless(), LIMITS, Findings(lambda _: None))


def test_a_pool_too_small_for_the_check_is_told(load_static: Load) -> None:
    findings = Findings(lambda _: None)
    runner, _ = runner_of(load_static("llama"), blocks=1, block_size=4)
    record(eager_of(runner), CpuRecorder(), LIMITS, findings)
    assert findings.checks == ["CUDA graphs not checked: the KV cache has no room for their steps"]


class Hungry(CpuRecorder):
    """Leaves 3 MiB with the first recordings, and 9 with others."""

    left = 3 << 20

    def free_bytes(self) -> int:
        return self.left

    def start_over(self) -> None:
        self.left = 9 << 20


def test_recordings_leave_the_memory_that_other_steps_need(load_static: Load) -> None:
    findings = Findings(lambda _: None)
    runner, _ = runner_of(load_static("llama"), blocks=9, block_size=4)
    graphs = record(eager_of(runner), Hungry(), replace(LIMITS, spare=3 << 20), findings)
    assert graphs.sizes == ([1, 2, 4, 8], [16, 24])
    assert not findings.fallbacks
    graphs = record(eager_of(runner), Hungry(), replace(LIMITS, spare=4 << 20), findings)
    assert graphs.sizes == ([1, 2, 4, 8], [])
    assert findings.fallbacks == [
        "CUDA graphs of decode steps only: beside what is recorded 3 MiB are free, and a step may need 4 MiB"
    ]


@pytest.mark.parametrize(("prompts", "recordings"), [(True, 9 + 7), (False, 7)])
def test_recording_stops_where_decode_steps_leave_too_little(
    prompts: bool, recordings: int, load_static: Load
) -> None:
    """That is looked at after each recording."""
    findings, recorder = Findings(lambda _: None), Hungry()
    eager = eager_of(runner_of(load_static("llama"), blocks=9, block_size=4)[0])
    recorder.left = (3 if prompts else 9) << 20
    with pytest.raises(CannotRecord, match=r"^beside what is recorded 9 MiB are free, .* may need 10 MiB$"):
        record(eager, recorder, replace(LIMITS, spare=10 << 20, prompts=prompts), findings)
    assert recorder.recordings == recordings
    assert len(findings.fallbacks) == prompts


class MixedOutOfMemory(CpuRecorder):
    """Has no memory for the second step with prompts."""

    def __init__(self) -> None:
        super().__init__()
        self.alive: list[weakref.ref[object]] = []
        self.left = -1  # recordings and inputs that were alive when it started over

    def begin(self) -> None:
        super().begin()
        self.alive.append(weakref.ref(self._tape))
        if len(self.alive) == 2:
            raise torch.OutOfMemoryError("CUDA out of memory")

    def start_over(self) -> None:
        super().start_over()
        self.left = sum(tape() is not None for tape in self.alive)


def test_failed_mixed_steps_free_memory_before_decode_recordings(load_static: Load) -> None:
    findings, recorder = Findings(lambda _: None), MixedOutOfMemory()
    runner, _ = runner_of(load_static("llama"), blocks=9, block_size=4)
    graphs = record(eager_of(runner), recorder, LIMITS, findings)
    assert recorder.left == 0
    assert recorder.recordings == 1 + 7
    assert graphs.sizes == ([1, 2, 4, 8], [])
    assert findings.fallbacks == ["CUDA graphs of decode steps only: OutOfMemoryError: CUDA out of memory"]
