"""A whole engine on a CUDA device: Triton kernels, a step launched ahead, tokens that stay on the device. In
float32 it gives the tokens of the CPU's engine, which the other tests hold against transformers.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.engine.whole_engine import engine_on, tokens_of
from support.models import checkpoints

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

CASES = ("llama", "mistral", "gemma2", "qwen3", "phi", "gpt_oss")


@pytest.mark.parametrize("cuda_graphs", ["off", "auto"])
@pytest.mark.parametrize("case", CASES)
def test_the_gpu_gives_the_tokens_of_the_cpu(case: str, cuda_graphs: str, tmp_path: Path) -> None:
    folder = checkpoints.build(case, tmp_path)
    found = tokens_of(engine_on("cuda", folder, cuda_graphs=cuda_graphs))
    assert found == tokens_of(engine_on("cpu", folder))


@pytest.mark.parametrize("changes", [{}, {"kv_memory": "10KiB", "host_swap": "1MiB"}], ids=str)
@pytest.mark.parametrize("cuda_graphs", ["off", "auto"])
def test_in_int8_too(cuda_graphs: str, changes: dict[str, str], tmp_path: Path) -> None:
    folder = checkpoints.build("llama", tmp_path)
    told: list[str] = []
    engine = engine_on("cuda", folder, told.append, kv_dtype="int8", cuda_graphs=cuda_graphs, **changes)
    assert tokens_of(engine) == tokens_of(engine_on("cpu", folder, kv_dtype="int8"))
    assert any("Triton kernels" in line for line in told), "it has passed its check"
    assert (engine.report().stats.swapped_in_total > 0) == bool(changes)


@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_rows_of_every_length_end_in_narrow_dtypes(dtype: str, kv_dtype: str, tmp_path: Path) -> None:
    folder = checkpoints.build("llama", tmp_path)
    tokens = tokens_of(engine_on("cuda", folder, dtype=dtype, kv_dtype=kv_dtype))
    assert {handle: len(row) for handle, row in tokens.items()} == {n: 8 + n for n in range(12)}
