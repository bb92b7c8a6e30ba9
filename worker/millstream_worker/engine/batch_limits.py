"""Chooses the batch size and the step token budget where the operator leaves them open (0): those that a CPU
computes well, or on a GPU the largest for whose rows the KV cache has room."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from millstream_worker.engine.protocol.config import EngineConfig
from millstream_worker.engine.runner.kv.pool_size import BadKVMemory
from millstream_worker.engine.runner.states.pool_share import PoolShare

ON_CPU = (64, 2048)  # rows, new tokens in a step
ON_GPU = (256, 8192)
ROW_TOKENS = 512  # KV tokens that the pool holds for each row, unless the operator has set their number
LEAST_ROWS = 8


def fit_limits(
    config: EngineConfig,
    device: str,
    share_beside: Callable[[EngineConfig], PoolShare],
    *,
    recurrent: bool = False,
) -> tuple[EngineConfig, PoolShare]:
    """Returns the configuration with both numbers, and the pool's share. `device`: cpu | cuda. `share_beside`
    returns the one that a configuration's steps leave; it raises BadKVMemory for none. `recurrent`: each row
    takes a state of the pool."""
    *larger, smallest = _candidates(config, device, recurrent=recurrent)
    for candidate in larger:
        try:
            share = share_beside(candidate)
        except BadKVMemory:  # a step is too large for what is free, or the states of its rows are
            continue
        if config.max_rows or share.blocks * config.block_size >= candidate.max_rows * ROW_TOKENS:
            return candidate, share
    return smallest, share_beside(smallest)


def _candidates(config: EngineConfig, device: str, *, recurrent: bool) -> Iterator[EngineConfig]:
    """Yields configurations; on a GPU each halves the open values of the one before, and of a model with
    recurrent states an open number of rows."""
    rows, tokens = ON_GPU if device == "cuda" else ON_CPU
    yield (candidate := _filled(config, rows, tokens))
    shrinks = device == "cuda" or (recurrent and not config.max_rows)
    while shrinks and candidate != config and rows > LEAST_ROWS:
        rows, tokens = rows // 2, tokens // 2 if device == "cuda" else tokens
        yield (candidate := _filled(config, rows, tokens))


def _filled(config: EngineConfig, rows: int, tokens: int) -> EngineConfig:
    return replace(config, max_rows=config.max_rows or rows, max_step_tokens=config.max_step_tokens or tokens)
