"""Divides the device's memory between the steps and the KV pool."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from millstream_worker.engine.batch_limits import LEAST_ROWS, fit_limits
from millstream_worker.engine.protocol.config import EngineConfig
from millstream_worker.engine.runner.kv.host_swap import copy_bytes, host_pages
from millstream_worker.engine.runner.kv.pool_size import free_bytes, pool_bytes
from millstream_worker.engine.runner.kv.storage import bytes_per_block
from millstream_worker.engine.runner.model.load import LoadedModel
from millstream_worker.engine.runner.profiling import step_needs
from millstream_worker.engine.runner.replay.cpu_replay import workspace_bytes
from millstream_worker.engine.runner.sampling.chooser import Chooser
from millstream_worker.engine.runner.states.held_inputs import held_bytes, held_tokens
from millstream_worker.engine.runner.states.pool_share import PoolShare, StateBytes, share_pool
from millstream_worker.engine.runner.states.slot_segments import MOST_DRAFTS
from millstream_worker.engine.runner.states.spec import bytes_per_row


@dataclass(frozen=True, slots=True)
class FittedMemory:
    config: EngineConfig  # with the limits of a batch
    share: PoolShare  # blocks of the KV pool, and places for checkpoints
    step_bytes: int  # for the largest step, computed from Python
    host_pages: int  # blocks in host memory
    context_length: int  # most tokens of a row
    most_drafts: int  # of a row with a recurrent state, in a step; 0: as many as are guessed
    states: StateBytes  # of one row


def fit_memory(
    config: EngineConfig,
    loaded: LoadedModel,
    chooser: Chooser,
    *,
    images: int,
    records: bool,
    report: Callable[[str], None],
    mark: Callable[[], None],
) -> FittedMemory:
    """Returns the largest pool beside which as much memory is left as steps need: twice that where they are
    recorded, as these compute in memory of their own, and `images` bytes. Raises BadKVMemory."""
    device, step_bytes = loaded.device, 0
    block_bytes = bytes_per_block(loaded.layer_specs, config.block_size, loaded.dtype)
    if recurrent := bool(loaded.state_specs):
        config = _without_host_swap(config, report)
    drafts = MOST_DRAFTS if recurrent and config.speculate != "off" else 0
    rows_set = config.max_rows > 0
    held = held_bytes(loaded.state_specs, held_tokens(drafts))
    each = StateBytes(bytes_per_row(loaded.state_specs), held)
    pages = host_pages(config.host_swap, block_bytes, device, free_bytes(torch.device("cpu")))

    def share_beside(config: EngineConfig) -> PoolShare:
        nonlocal step_bytes
        step_bytes = step_needs(
            loaded,
            chooser,
            tokens=config.max_step_tokens,
            rows=min(config.max_rows, config.max_step_tokens),
            block_size=config.block_size,
            report=report,
            mark=mark,
        )
        aside = images + step_bytes * (2 if records else 1) + copy_bytes(config, pages, block_bytes)
        if device.type == "cpu" and config.compile_model != "off":
            aside += workspace_bytes(loaded.vocab_size)
        size = pool_bytes(config.kv_memory, block_bytes, device, free=free_bytes(device), aside=aside)
        fixed = rows_set or config.max_rows <= LEAST_ROWS
        return share_pool(size, block_bytes, each, config.max_rows, fixed=fixed)

    config, share = fit_limits(config, device.type, share_beside, recurrent=recurrent)
    longest = min(loaded.context_length, config.max_context or loaded.context_length)
    return FittedMemory(config, share, step_bytes, pages, longest, drafts, each)


def _without_host_swap(config: EngineConfig, report: Callable[[str], None]) -> EngineConfig:
    if config.host_swap != "0":
        report("host_swap is off: rows with a recurrent state are computed again from a checkpoint")
    return replace(config, host_swap="0")
