"""How many kernels a layer launches in a decode step on a GPU that is not here: a CUDA graph has a node for
each, and replays them one after the other. Run with -s to see the table."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

from support.engine.attention_step import ON_GPU, Step, spec
from support.engine.kernel_resources import launches_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(ON_GPU, reason="one is there; a model of fake tensors would be taken for its own"),
]
MOST = 11  # 4 products, 5 of what is between them, attention's 2
PROGRAMS = 528  # that keep an H200 busy


def of_attention(keys: int) -> list[str]:
    """Of eight rows with so many keys."""
    return [launch.name for launch in launches_of(Step(spec(32, 8, 128), [(keys, 1)] * 8), PROGRAMS)]


def test_attention_in_parts_is_one_more() -> None:
    assert of_attention(200) == ["store_kernel", "decode_kernel"]
    assert of_attention(600) == ["store_kernel", "decode_kernel", "merge_kernel"]


def test_a_layer() -> None:
    """With norms of queries and keys."""
    command = [sys.executable, "-m", "support.engine.cuda_code", "qwen3"]
    done = subprocess.run(command, cwd=Path(__file__).parents[4], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    for tokens, launches in zip(("any number", "one"), json.loads(done.stdout), strict=True):
        place = launches.index("torch.ops.millstream.attend")
        launches[place : place + 1] = of_attention(200)
        print(f"\n{tokens}:", *launches, sep="\n    ")
        assert sum(name.startswith("extern_kernels.") for name in launches) == 4
        assert len(launches) <= MOST
