"""An engine as the worker builds it, of a model that is compiled at start: its steps are recorded and
replayed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from support.engine.whole_engine import run
from support.models import checkpoints

from millstream_worker.engine.assembly import build
from millstream_worker.engine.brain.batch.plan import LOGITS
from millstream_worker.engine.protocol.config import EngineConfig
from millstream_worker.engine.protocol.request import EngineRequest, SamplingSpec
from millstream_worker.engine.runner.model.dtypes import computed_in
from millstream_worker.engine.runner.replay.cpu_replay import CpuReplay

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")
BFLOAT16 = computed_in(torch.bfloat16, None) == torch.bfloat16


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler")
@pytest.mark.timeout(600)
def test_draws_what_it_draws_without(tmp_path: Path, own_cache: str) -> None:
    folder, said = checkpoints.build("llama", tmp_path), list[str]()
    config = EngineConfig(
        str(folder), dtype="bfloat16" if BFLOAT16 else "float32", device="cpu", threads=1, kv_memory="1MiB",
        block_size=4, max_rows=4, compile_model="on", cache_dir=own_cache,
    )  # fmt: skip
    engine, _ = build(config, said.append)
    sampling = SamplingSpec(temperature=1.2, top_p=0.9, repetition_penalty=1.1, seed=3)

    requests = [EngineRequest(n, tuple(range(3, 9 + n)), 8 + 6 * n, sampling) for n in range(5)]
    recorded = engine.runner.model  # type: ignore[attr-defined]
    assert isinstance(recorded, CpuReplay)
    got = run(engine, requests)
    assert {(LOGITS, (2, 2)), (LOGITS, (4, 4))} <= set(recorded._steps)
    assert not [line for line in said if "from Python" in line]
    engine.runner.model = recorded.eager  # type: ignore[attr-defined]
    assert run(engine, requests) == got
