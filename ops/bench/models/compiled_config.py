"""The configuration of an engine on the CPU with a compiled model, as of a worker after a busy minute."""

from __future__ import annotations

from pathlib import Path

from ops.bench.models.size import ModelSize

from millstream_worker.engine.protocol.config import EngineConfig

_BLOCK = 16  # tokens


def compiled_config(folder: Path, size: ModelSize, rows: int, context: int, threads: int) -> EngineConfig:
    """With a KV cache for `rows` rows of `context` tokens each."""
    blocks = rows * (-(-context // _BLOCK) + 2)
    return EngineConfig(
        str(folder),
        device="cpu",
        threads=threads,
        kv_memory=str(blocks * _BLOCK * size.kv_token_bytes),
        block_size=_BLOCK,
        max_rows=rows,
        compile_model="on",
        speculate="off",  # random weights repeat themselves
    )
