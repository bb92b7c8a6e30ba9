"""A second head beside that of logits: it is computed, compiled, replayed and recorded as that is."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.engine.cpu_recorder import CpuRecorder
from support.engine.libraries import share_headers
from support.engine.mean_head import with_mean
from support.engine.planning import Segment, pack
from support.engine.serving import eager_of, logits_of, runner_of
from support.engine.static_attention import PlainStatic

from millstream_worker.engine.brain.batch.plan import Plan
from millstream_worker.engine.runner.compiled.compile import compile_model
from millstream_worker.engine.runner.gpu.cuda_graphs.recording import record
from millstream_worker.engine.runner.gpu.cuda_graphs.steps import GraphLimits
from millstream_worker.engine.runner.model.load import LoadedModel
from millstream_worker.engine.runner.replay.cpu_replay import CpuReplay
from millstream_worker.engine.runner.runner import Runner
from millstream_worker.engine.runner.self_check.findings import Findings

Load = Callable[[str], LoadedModel]
STEPS = ([3, 1, 5], [2], [1, 1, 1, 1])  # new tokens of rows


def plan_of(lens: list[int], shift: int = 0) -> Plan:
    """Rows of so many tokens, from the beginning; `shift` makes others of them."""
    tokens = [np.arange(size) * 3 + 7 * row + shift + 5 for row, size in enumerate(lens)]
    rows = [Segment(row, own.tolist(), 0, [2 * row, 2 * row + 1]) for row, own in enumerate(tokens)]
    return replace(pack(rows, 4), head="mean")


@torch.inference_mode()
def expected(loaded: LoadedModel, plan: Plan) -> torch.Tensor:
    """The definition, row by row, of the body's hidden states."""
    eager = eager_of(runner_of(loaded, blocks=16, block_size=4)[0])
    eager.attention.begin(plan)
    body = loaded.heads.body
    assert body is not None
    tokens, positions = (torch.from_numpy(one.astype(np.int64)) for one in (plan.tokens, plan.positions))
    hidden = body(tokens, positions)
    return torch.stack([part.mean(0) for part in hidden.split(plan.query_lens.tolist())])


def check(runner: Runner, plain: LoadedModel, times: int = 1) -> None:
    """Steps of the second head between steps that sample."""
    for time in range(times):
        for lens in STEPS:
            plan = plan_of(lens, shift=time)
            torch.testing.assert_close(logits_of(runner, plan), expected(plain, plan), atol=1e-5, rtol=1e-5)
            assert logits_of(runner, replace(plan, head="logits")).shape == (len(lens), plain.vocab_size)


@pytest.mark.parametrize("case", ["llama", "gpt2", "opt"])
def test_a_second_head_answers_on_the_cpu(case: str, load: Load) -> None:
    check(runner_of(with_mean(load(case)), blocks=16, block_size=4)[0], load(case))


@pytest.mark.parametrize("attention_name", ["torch"])  # the stand-in for a recorder sees no other
def test_a_second_head_answers_beside_recorded_graphs(load: Load) -> None:
    loaded = replace(with_mean(load("llama")), attend_over=PlainStatic)
    runner, _ = runner_of(loaded, blocks=40, block_size=4)
    graphs = record(eager_of(runner), CpuRecorder(), GraphLimits(rows=4, tokens=16, width=8), Findings(print))
    assert all(graphs.recorded_for(plan_of(lens)) for lens in STEPS)
    runner.model = graphs
    check(runner, load("llama"), times=2)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler")
def test_a_second_head_is_compiled_and_replayed(load: Load, tmp_path: Path) -> None:
    plain, loaded, said = load("llama"), with_mean(load("llama")), list[str]()
    compile_model(loaded, share_headers(tmp_path) / "kept", lambda message: None)
    runner, _ = runner_of(loaded, blocks=16, block_size=4)
    check(runner, plain)
    form = runner.model = CpuReplay(eager_of(runner), said.append)
    check(runner, plain, times=6)
    assert {head for head, _ in form._steps} == {"mean", "logits"}
    assert len(form._compared) > 1
    assert said == []
