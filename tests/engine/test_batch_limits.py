"""Rows and tokens of a step on devices of several sizes, for what the operator leaves open."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from millstream_worker.engine.batch_limits import ROW_TOKENS, fit_limits
from millstream_worker.engine.protocol.config import EngineConfig
from millstream_worker.engine.runner.kv.pool_size import BadKVMemory
from millstream_worker.engine.runner.states.pool_share import PoolShare, StateBytes, share_pool

OPEN = EngineConfig("model", max_rows=0, max_step_tokens=0)
GIB = 2**30


def device_of(gigabytes: int, weights: int, kv_bytes_per_token: int) -> Callable[[EngineConfig], PoolShare]:
    """A GPU's memory, with a model of `weights` gigabytes whose steps take 300 KB for each new token and 4 MB
    for each row."""

    def share(config: EngineConfig) -> PoolShare:
        step = config.max_step_tokens * 300_000 + config.max_rows * 4_000_000
        free = int((gigabytes - weights) * GIB - 2 * step)  # recorded steps compute in memory of their own
        if free < kv_bytes_per_token * config.block_size:
            raise BadKVMemory("kv_memory 'auto': a step is too large")
        return PoolShare(int(free * 0.9) // (kv_bytes_per_token * config.block_size))

    return share


@pytest.mark.parametrize(
    ("gigabytes", "weights", "kv_bytes", "rows"),
    [
        (80, 16, 131_072, 256),  # 8B
        (24, 16, 131_072, 64),
        (16, 1, 114_688, 128),  # 0.6B: 256 rows leave 88,000 tokens, and 131,072 are wanted
        (8, 3, 114_688, 32),
        (8, 7, 131_072, 8),
    ],
)
def test_a_gpu_gets_as_many_rows_as_its_cache_has_room_for(
    gigabytes: int, weights: int, kv_bytes: int, rows: int
) -> None:
    config, share = fit_limits(OPEN, "cuda", device_of(gigabytes, weights, kv_bytes))
    assert (config.max_rows, config.max_step_tokens) == (rows, rows * 32)
    assert share == device_of(gigabytes, weights, kv_bytes)(config)
    assert rows == 8 or share.blocks * config.block_size >= rows * ROW_TOKENS


def test_what_the_operator_has_set_stays() -> None:
    small = device_of(8, 3, 114_688)
    given = replace(OPEN, max_rows=100, max_step_tokens=1000)
    assert fit_limits(given, "cuda", small)[0] == given
    config, _ = fit_limits(replace(OPEN, max_rows=100), "cuda", small)
    assert (config.max_rows, config.max_step_tokens) == (100, 4096)  # 8,192 leave nothing
    config, _ = fit_limits(replace(OPEN, max_step_tokens=1000), "cuda", small)
    assert config.max_step_tokens == 1000
    assert config.max_rows < 256


def test_a_cpu_gets_what_it_computes_well() -> None:
    config, share = fit_limits(OPEN, "cpu", lambda _: PoolShare(9))
    assert (config.max_rows, config.max_step_tokens, share.blocks) == (64, 2048, 9)


@pytest.mark.parametrize(("gigabytes", "rows", "places"), [(4, 64, 29), (2, 32, 14), (0.3, 8, 4)])
def test_a_row_of_a_hybrid_model_takes_its_state_of_the_pool(
    gigabytes: float, rows: int, places: int
) -> None:
    """Of the shape of Qwen3.5-0.8B: 19.4 MiB a row, and 12 KiB a token."""
    row_bytes, block_bytes, size = int(19.4 * 2**20), 12 * 1024 * 16, int(gigabytes * GIB)

    def shared(config: EngineConfig, *, fixed: bool = False) -> PoolShare:
        each = StateBytes(row_bytes)
        return share_pool(size, block_bytes, each, config.max_rows, fixed=fixed or config.max_rows <= 8)

    config, share = fit_limits(OPEN, "cpu", shared, recurrent=True)
    assert (config.max_rows, config.max_step_tokens, share.places) == (rows, 2048, places)
    taken = (rows + share.places) * row_bytes + share.blocks * block_bytes
    assert size - block_bytes < taken <= size
    with pytest.raises(BadKVMemory, match=r"4096 rows take 77.6\d GiB of it for their recurrent states, "):
        fit_limits(replace(OPEN, max_rows=4096), "cpu", lambda one: shared(one, fixed=True), recurrent=True)
    assert fit_limits(replace(OPEN, max_rows=9), "cpu", lambda one: shared(one, fixed=True))[0].max_rows == 9


def test_the_error_of_the_smallest_steps_is_the_one_that_is_told() -> None:
    with pytest.raises(BadKVMemory, match="too large"):
        fit_limits(OPEN, "cuda", device_of(8, 8, 131_072))
