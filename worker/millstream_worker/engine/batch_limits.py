"""Chooses the batch size and the step token budget where the operator leaves them open (0): those that a CPU
computes well, or on a GPU the largest for whose rows the KV cache has room."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from millstream_worker.engine.protocol.config import EngineConfig
from millstream_worker.engine.runner.kv.pool_size import BadKVMemory

ON_CPU = (64, 2048)  # rows, new tokens in a step
ON_GPU = (256, 8192)
ROW_TOKENS = 512  # KV tokens that the pool holds for each row, unless the operator has set their number
_LEAST_ROWS = 8


def fit_limits(
    config: EngineConfig, device: str, blocks_beside: Callable[[EngineConfig], int]
) -> tuple[EngineConfig, int]:
    """Returns the configuration with both numbers, and the pool's blocks. `device`: cpu | cuda.
    `blocks_beside` returns the blocks that a configuration's steps leave; it raises BadKVMemory for none."""
    *larger, smallest = _candidates(config, device)
    for candidate in larger:
        try:
            blocks = blocks_beside(candidate)
        except BadKVMemory:  # a step is too large for what is free
            continue
        if config.max_rows or blocks * config.block_size >= candidate.max_rows * ROW_TOKENS:
            return candidate, blocks
    return smallest, blocks_beside(smallest)


def _candidates(config: EngineConfig, device: str) -> Iterator[EngineConfig]:
    """Yields configurations; on a GPU each halves the open values of the one before."""
    rows, tokens = ON_GPU if device == "cuda" else ON_CPU
    yield (candidate := _filled(config, rows, tokens))
    while device == "cuda" and candidate != config and rows > _LEAST_ROWS:
        rows, tokens = rows // 2, tokens // 2
        yield (candidate := _filled(config, rows, tokens))


def _filled(config: EngineConfig, rows: int, tokens: int) -> EngineConfig:
    return replace(config, max_rows=config.max_rows or rows, max_step_tokens=config.max_step_tokens or tokens)
