"""A whole engine on a CUDA device: Triton kernels, a step launched ahead, tokens that stay on the device. In
float32 it gives the tokens of the CPU's engine, which the other tests hold against transformers.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support import checkpoints

from millstream_worker.engine.assembly import build
from millstream_worker.engine.config import EngineConfig
from millstream_worker.engine.request import EngineRequest, SamplingSpec

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

CASES = ("llama", "mistral", "gemma2", "qwen3", "phi", "gpt_oss")
PREFIX = tuple(range(3, 23))


def tokens_on(
    device: str, folder: Path, dtype: str = "float32", kv_memory: str = "2MiB"
) -> dict[int, list[int]]:
    """Ragged rows with a shared prefix, greedy and seeded, more than fit into the batch at once."""
    config = EngineConfig(
        str(folder),
        dtype=dtype,
        device=device,
        kv_memory=kv_memory,
        block_size=4,
        max_rows=6,
        max_step_tokens=24,
    )
    engine, info = build(config, lambda _: None)
    assert info.device.startswith(device)
    for handle in range(12):
        sampling = SamplingSpec(temperature=float(handle % 2), top_p=0.9, seed=handle)
        prompt = (*PREFIX[: handle * 2], *range(30, 33 + handle))
        assert engine.add(EngineRequest(handle, prompt, max_tokens=8 + handle, sampling=sampling)) is None
    tokens: dict[int, list[int]] = {}
    while not engine.idle:
        step = engine.step()
        assert step is not None
        for handle, token in zip(step.handles, step.tokens, strict=True):
            tokens.setdefault(handle, []).append(token)
    engine.scheduler.check()
    return tokens


@pytest.mark.parametrize("case", CASES)
def test_the_gpu_gives_the_tokens_of_the_cpu(case: str, tmp_path: Path) -> None:
    folder = checkpoints.build(case, tmp_path)
    assert tokens_on("cuda", folder) == tokens_on("cpu", folder)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_rows_of_every_length_end_in_narrow_dtypes(dtype: str, tmp_path: Path) -> None:
    folder = checkpoints.build("llama", tmp_path)
    tokens = tokens_on("cuda", folder, dtype)
    assert {handle: len(row) for handle, row in tokens.items()} == {n: 8 + n for n in range(12)}
