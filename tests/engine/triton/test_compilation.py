"""The kernels compile for a GPU that is not here: an H200 (compute capability 9.0)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from millstream_worker.engine.runner.attention.triton.decode import (
    combine_kernel,
    decode_kernel,
    shared_kernel,
)
from millstream_worker.engine.runner.attention.triton.prefill import prefill_kernel
from millstream_worker.engine.runner.attention.triton.store import store_kernel

pytestmark = pytest.mark.slow

CONSTANTS = {
    "HEADS": 8,
    "KV_HEADS": 2,
    "GROUP": 4,
    "KEY_DIM": 80,
    "VALUE_DIM": 80,
    "PAD_KEY": 128,
    "PAD_VALUE": 128,
    "BLOCK_SIZE": 16,
    "KEYS": 64,
    "WINDOW": 512,
    "SOFTCAP": 50.0,
    "SINKS": True,
    "TOKENS": 16,
    "LEAST": 256,
    "ALONE": False,
    "PAD_PARTS": 8,
}
NOT_HALF = {"slots": "*i64", "parts": "*fp32", "part_sums": "*fp32", "scale": "fp32"}
HALF = {"query", "key", "value", "keys", "values", "sinks", "out"}
INDEX = {"tables", "kv_lens", "query_lens", "query_starts", "tile_segments", "tile_firsts"} | {
    "shared_lens", "members", "tile_counts",
}  # fmt: skip


PLAIN = {"WINDOW": 0, "SOFTCAP": 0.0, "SINKS": False, "ALONE": True}
MODELS = {
    "everything": {},
    "llama": PLAIN | {"KEY_DIM": 128, "VALUE_DIM": 128},
    "gemma": PLAIN | {"KEY_DIM": 256, "VALUE_DIM": 256, "PAD_KEY": 256, "PAD_VALUE": 256, "KEYS": 32},
}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    ("kernel", "rows"),
    [(decode_kernel, 16), (combine_kernel, 0), (prefill_kernel, 64), (store_kernel, 0), (shared_kernel, 64)],
)
def test_it_compiles(
    kernel: Any, rows: int, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # else some versions warn that it will change
    constants = CONSTANTS | MODELS[model] | {"ROWS": rows}
    signature = {name: _type(name) for name in kernel.arg_names}
    constexprs = {
        (place,): constants[name] for place, name in enumerate(kernel.arg_names) if name in constants
    }
    aligned = {
        (place,): [["tt.divisibility", 16]]
        for place, name in enumerate(kernel.arg_names)
        if signature[name].startswith("*") or name.endswith("_stride")
    }
    compiled = triton.compile(
        ASTSource(kernel, signature, constexprs, aligned), target=GPUTarget("cuda", 90, warp_size=32)
    )

    assert len(compiled.asm["cubin"]) > 0
    assert compiled.metadata.shared < 227 * 1024, "more than a processor has"
    if model != "gemma":
        assert compiled.metadata.shared < 100_000  # bytes: several programs to a processor


def _type(name: str) -> str:
    if name in CONSTANTS or name == "ROWS":
        return "constexpr"
    if name in HALF:
        return "*bf16"
    return NOT_HALF.get(name) or ("*i32" if name in INDEX else "i32")
