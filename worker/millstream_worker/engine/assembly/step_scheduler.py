"""Describes a loaded engine, and makes the scheduler for it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from millstream_worker.engine.assembly.fitted_memory import FittedMemory
from millstream_worker.engine.assembly.model_images import ModelImages
from millstream_worker.engine.brain.batch.shared_prefixes import SharingCosts
from millstream_worker.engine.brain.scheduler import Scheduler
from millstream_worker.engine.brain.scheduler_config import SchedulerConfig
from millstream_worker.engine.protocol.config import EngineInfo
from millstream_worker.engine.runner.checkpoint.checkpoint import Checkpoint
from millstream_worker.engine.runner.kv.host_swap import HostSwap, copied_blocks
from millstream_worker.engine.runner.kv.kv_format import LAYOUT
from millstream_worker.engine.runner.kv.pool_size import capacity_line, room_line
from millstream_worker.engine.runner.kv.storage import bytes_per_block
from millstream_worker.engine.runner.model.load import LoadedModel
from millstream_worker.engine.runner.states.pool_share import states_line

_SHARING = {  # by backend: on the CPU two rows that share 192 tokens are read faster together already
    "triton": SharingCosts(),
    "native": SharingCosts(row=16, step=256),
}


def describe(
    checkpoint: Checkpoint,
    loaded: LoadedModel,
    memory: FittedMemory,
    images: ModelImages,
    report: Callable[[str], None],
) -> EngineInfo:
    """Returns the facts about an engine, and reports them; without the findings at its start."""
    config = memory.config
    block_bytes = bytes_per_block(loaded.layer_specs, config.block_size, loaded.dtype)
    info = EngineInfo(
        model=checkpoint.name,
        architecture=loaded.architecture,
        dtype=str(loaded.dtype).removeprefix("torch."),
        weights=loaded.weights,
        kv_format=loaded.kv_format,
        weight_bytes=loaded.weight_bytes,
        device=str(loaded.device),
        attention=loaded.attention,
        vocab_size=loaded.vocab_size,
        context_length=memory.context_length,
        eos_ids=loaded.eos_ids,
        block_size=config.block_size,
        blocks=memory.share.blocks,
        max_rows=config.max_rows,
        kv_bytes_per_token=block_bytes // config.block_size,
        parameters=loaded.parameters,
        tokenizer=str(checkpoint.tokenizer_folder),
        images=images.features is not None,
        image_memory=images.memory,
        feature_bytes=images.feature_bytes,
        image_options=config.image_options,
    )
    lines = [*loaded.notes, capacity_line(info)]
    if loaded.state_specs:
        lines.append(states_line(config.max_rows, memory.share.places, memory.states))
    for line in (*lines, room_line(info)):
        report(line)
    return info


def scheduler_for(
    memory: FittedMemory, info: EngineInfo, images: ModelImages, depth: int, swap: HostSwap | None
) -> Scheduler:
    """Returns the scheduler of an engine that has `depth` steps in flight."""
    config = memory.config
    return Scheduler(
        SchedulerConfig(
            max_rows=config.max_rows,
            max_step_tokens=config.max_step_tokens,
            block_size=config.block_size,
            blocks=info.blocks,
            context_length=info.context_length,
            vocab_size=info.vocab_size,
            prefix_cache=config.prefix_cache,
            sharing=_SHARING.get(info.attention) if config.shared_attention else None,
            salted=config.prefix_scope == "tenant",
            hash_seed=hashlib.sha256(
                f"{info.model} {info.dtype} {info.weights} {info.kv_format} {LAYOUT}".encode()
            ).digest(),
            pipeline_depth=depth,
            step_time_target_s=config.step_time_target_ms / 1000,
            step_time_for_all=config.step_time_for == "all",
            speculate=config.speculate,
            most_drafts=memory.most_drafts,
            host_blocks=swap.pages if swap else 0,
            host_blocks_a_step=copied_blocks(config),
            host_block_s=swap.block_seconds() if swap else 0.0,
            state_places=memory.share.places,
            image_bytes=info.image_memory,
            feature_bytes=info.feature_bytes,
        ),
        rope=images.rope,
    )
