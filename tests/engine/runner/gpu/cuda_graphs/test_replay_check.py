"""The check of recorded steps refuses those that compute or store something else, whatever of the step that
depends on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.engine.cpu_recorder import CpuRecorder
from support.engine.serving import eager_of, runner_of
from support.engine.static_attention import PlainStatic, PlainStep
from torch import Tensor

from millstream_worker.engine.brain.batch.plan import Plan
from millstream_worker.engine.runner.forward import Eager
from millstream_worker.engine.runner.gpu.attention.step_layout import StepLayout
from millstream_worker.engine.runner.gpu.cuda_graphs.replay_check import check_replay, compute
from millstream_worker.engine.runner.gpu.cuda_graphs.replay_steps import ReplaySteps
from millstream_worker.engine.runner.gpu.cuda_graphs.steps import CudaGraphs, GraphLimits
from millstream_worker.engine.runner.kv.kv_format import KVFormat
from millstream_worker.engine.runner.kv.layer_spec import LayerSpec
from millstream_worker.engine.runner.kv.storage import KVStorage
from millstream_worker.engine.runner.model.load import LoadedModel
from millstream_worker.engine.runner.self_check.deviation import Mismatch

Load = Callable[[str], LoadedModel]
Replay = Callable[[Plan], Tensor | None]
LIMITS = GraphLimits(rows=4, tokens=24, width=20)


class Recorded:
    """A model with recorded steps, and the steps to check them with."""

    def __init__(self, loaded: LoadedModel) -> None:
        self.eager: Eager = eager_of(runner_of(loaded, blocks=20, block_size=4)[0])
        self.graphs = CudaGraphs(self.eager, CpuRecorder(), LIMITS)
        self.graphs.record(lambda: None, pytest.fail)
        steps = ReplaySteps.within(self.eager.storage, loaded.context_length, LIMITS.rows)
        assert steps is not None
        self.steps = steps
        compute(self.eager, steps.fill(LIMITS.tokens))

    def check(self, kind: str, replay: Replay | None = None) -> float | None:
        steps = {"decodes": self.steps.decodes, "mixed": self.steps.mixed}[kind]()
        return check_replay(self.eager, replay or self.graphs.replay, steps)


def recorded(
    load: Load, attention: type[PlainStatic] = PlainStatic, kv_format: KVFormat = KVFormat.AS_COMPUTED
) -> Recorded:
    loaded = load("llama")
    layers = tuple(replace(layer, kv_format=kv_format) for layer in loaded.layer_specs)
    anatomy = replace(loaded.anatomy, layer_specs=layers)
    return Recorded(replace(loaded, anatomy=anatomy, attend_over=attention))


@pytest.fixture(params=["decodes", "mixed"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("kv_format", KVFormat)
def test_right_ones_pass(kv_format: KVFormat, kind: str, load: Load) -> None:
    worst = recorded(load, kv_format=kv_format).check(kind)
    assert worst is not None
    # A number between two codes becomes one or the other.
    assert worst < (1e-4 if kv_format is KVFormat.AS_COMPUTED else 1e-3)


class Forgetful(PlainStatic):
    """Has stored nothing when a recorded step is over."""

    def _attend(self, step: PlainStep, layer: int, *given: Tensor, **others: Tensor) -> Tensor:
        parts = self._storage.keys[layer], self._storage.values[layer]
        before = [part.clone() for part in parts]
        answer = super()._attend(step, layer, *given, **others)
        for part, old in zip(parts, before, strict=True):
            part.copy_(old)
        return answer


class ForgetsValues(PlainStatic):
    """Of one layer."""

    def _attend(self, step: PlainStep, layer: int, *given: Tensor, **others: Tensor) -> Tensor:
        before = self._storage.values[layer].clone()
        answer = super()._attend(step, layer, *given, **others)
        if layer == 1:
            self._storage.values[layer].copy_(before)
        return answer


class ForgetsScales(PlainStatic):
    """Of values, of one layer."""

    def _attend(self, step: PlainStep, layer: int, *given: Tensor, **others: Tensor) -> Tensor:
        scales = self._storage.value_scales[layer]
        assert scales is not None
        before = scales.clone()
        answer = super()._attend(step, layer, *given, **others)
        if layer == 1:
            scales.copy_(before)
        return answer


@pytest.mark.parametrize(
    ("attention", "kv_format"),
    [
        (Forgetful, KVFormat.AS_COMPUTED),
        (ForgetsValues, KVFormat.AS_COMPUTED),
        (ForgetsValues, KVFormat.INT8),
        (ForgetsScales, KVFormat.INT8),
    ],
)
def test_one_that_stores_nothing_is_refused(
    kind: str, attention: type[PlainStatic], kv_format: KVFormat, load: Load
) -> None:
    with pytest.raises(Mismatch, match=r"stores other keys or values: off by 1 of the largest of a layer$"):
        recorded(load, attention, kv_format).check(kind)


def test_one_that_stores_elsewhere_too_is_refused(kind: str, load: Load) -> None:
    found = recorded(load)

    def replay(plan: Plan) -> Tensor | None:
        logits = found.graphs.replay(plan)
        found.eager.storage.values[1][0, 0, 2, 3] += 1e-3
        return logits

    with pytest.raises(Mismatch, match=r"rows and \d+ tokens changes keys or values of other tokens$"):
        found.check(kind, replay)


def test_one_that_takes_no_tokens_from_the_device_is_refused(kind: str, load: Load) -> None:
    found = recorded(load)

    def replay(plan: Plan) -> Tensor | None:
        return found.graphs.replay(replace(plan, from_device=np.zeros_like(plan.from_device)))

    with pytest.raises(Mismatch, match=r"a recorded step of \d rows and \d+ tokens has other logits"):
        found.check(kind, replay)


class ReadsOnePart(PlainStatic):
    """The first, of 16 keys, and what is new."""

    def _attend(self, step: PlainStep, *given: Any, **others: Any) -> Tensor:
        seen = step.arena["seen"]
        before = seen.clone()
        seen.copy_(seen.where(seen < 30, 16))
        answer = super()._attend(step, *given, **others)
        seen.copy_(before)
        return answer


def test_a_replay_that_reads_only_a_rows_first_keys_is_refused(kind: str, load: Load) -> None:
    with pytest.raises(Mismatch, match=r"a recorded step of \d rows and \d tokens has other logits"):
        recorded(load, ReadsOnePart).check(kind)


def storage_of(blocks: int, block_size: int) -> KVStorage:
    return KVStorage(
        [LayerSpec(32, 8, 128, 128, 0.1)], blocks, block_size, torch.bfloat16, torch.device("meta")
    )


@pytest.mark.parametrize("programs", [80, 528])  # of a small GPU and an H200
@pytest.mark.parametrize(("rows", "blocks"), [(256, 8000), (64, 200), (4, 150)])
def test_their_keys_are_cut_into_parts(programs: int, rows: int, blocks: int) -> None:
    """So that no vector of a recorded step stays blank: parts, merges, and partials of each."""
    storage = storage_of(blocks, 16)
    steps = ReplaySteps.within(storage, 8192, rows)
    assert steps is not None
    layout = StepLayout(storage.layers[0], 2, programs)
    most: Counter[str] = Counter()
    alone = 0  # parts of the one row that shares nothing
    for plan in (*steps.decodes(), *steps.mixed()):
        vectors, numbers = layout.arrays(plan)
        for name, count in [*numbers.items(), *((name, len(vector)) for name, vector in vectors.items())]:
            most[name] = max(most[name], count)
        if len(plan.query_lens) == 1:
            alone = max(alone, len(vectors["decode_parts"]))
        if len(plan.prefix_group_lens) and len(plan.query_lens) == 3:
            assert len(vectors["shared_parts"]) > 1, "one tile, in parts"
    assert alone > 1
    assert most["prefill_parts"] > 1
    assert most["decode_merges"] >= min(rows, steps.rows)
    assert min(most["prefill_merges"], most["decode_partials"], most["prefill_partials"]) > 0


@given(st.integers(1, 80), st.sampled_from([1, 2, 3, 4, 16, 1024]), st.integers(1, 3000), st.integers(1, 300))
def test_they_fit(blocks: int, block_size: int, context_length: int, rows: int) -> None:
    steps = ReplaySteps.within(storage_of(blocks, block_size), context_length, rows)
    if steps is None:
        assert context_length < block_size + 2 or blocks < 2 or block_size < 3 > blocks - blocks // 2
        return
    for plan in (*steps.fill(7), *steps.decodes(), *steps.mixed()):
        [table], [slots] = plan.block_tables, plan.slot_mapping
        assert len(plan.query_lens) <= rows
        assert plan.kv_lens.max() <= min(context_length, table.shape[1] * block_size)
        assert table.max() < blocks
        assert len(set(slots.tolist())) == plan.token_count
