"""A whole engine whose rows read their common beginning together draws the tokens of one whose rows do not,
and of the plain backend. Run by test_kernels.py, as kernels.py is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.engine.attention_step import DEVICE
from support.engine.serving import serve
from support.models import checkpoints

from millstream_worker.engine.brain.batch.shared_prefixes import SharingCosts
from millstream_worker.engine.protocol.request import EngineRequest, SamplingSpec
from millstream_worker.engine.runner.attention.torch_backend import TorchAttention
from millstream_worker.engine.runner.gpu.attention import launches
from millstream_worker.engine.runner.gpu.attention.triton_backend import TritonAttention
from millstream_worker.engine.runner.model.load import load_model

DOCUMENT = tuple(range(3, 16))  # three blocks of four, and one token


Backend = type[TritonAttention] | type[TorchAttention]


def tokens_of(
    folder: Path,
    backend: Backend,
    sharing: SharingCosts | None,
    depth: int,
    kv_dtype: str,
    step_tokens: int = 24,
) -> dict[int, list[int]]:
    """Two rows that begin alike; one more joins them, and one that does not."""
    loaded = load_model(str(folder), dtype=torch.float32, device=DEVICE, kv_dtype=kv_dtype)
    prompts = [(*DOCUMENT, 60), (*DOCUMENT, 61, 62), (*DOCUMENT, 63), (7, 8, 9)]
    arrivals = [
        (
            min(handle, 1),
            EngineRequest(handle, prompt, 5 - handle, SamplingSpec(temperature=1.0, seed=handle)),
        )
        for handle, prompt in enumerate(prompts)
    ]
    served = serve(
        replace(loaded, attend_over=backend),
        arrivals,
        blocks=40,
        step_tokens=step_tokens,
        pipeline_depth=depth,
        sharing=sharing,
    )
    return dict(served.tokens)


@pytest.mark.parametrize(("case", "depth", "kv_dtype"), [("gpt_oss", 1, "auto"), ("llama", 0, "int8")])
def test_reading_together_changes_no_token(
    case: str, depth: int, kv_dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = []
    share = launches._share
    monkeypatch.setattr(launches, "_share", lambda call, *to: (shared.append(call), share(call, *to)))
    folder = checkpoints.build(case, tmp_path)
    together = tokens_of(folder, TritonAttention, SharingCosts(row=0, step=0), depth, kv_dtype)

    assert shared, "nobody read anything together"
    assert together == tokens_of(folder, TorchAttention, None, depth, kv_dtype)
    shared.clear()
    # In other chunks, too.
    assert together == tokens_of(folder, TritonAttention, None, depth, kv_dtype, step_tokens=7)
    assert not shared
