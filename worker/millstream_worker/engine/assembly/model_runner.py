"""Puts a model's runner together: storage, sampler, and the form of its steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from millstream_worker.engine.assembly.fitted_memory import FittedMemory
from millstream_worker.engine.runner.device.free_cores import FreeCores
from millstream_worker.engine.runner.forward import Eager, Forward, storage_of_states
from millstream_worker.engine.runner.gpu.cuda_graphs import recording
from millstream_worker.engine.runner.gpu.cuda_graphs.cuda import CudaRecorder
from millstream_worker.engine.runner.gpu.cuda_graphs.recorder import CannotRecord
from millstream_worker.engine.runner.gpu.cuda_graphs.steps import GraphLimits
from millstream_worker.engine.runner.kv.host_swap import HostSwap, open_swap
from millstream_worker.engine.runner.kv.storage import KVStorage
from millstream_worker.engine.runner.model.load import LoadedModel
from millstream_worker.engine.runner.replay.cpu_replay import replayed
from millstream_worker.engine.runner.runner import Runner
from millstream_worker.engine.runner.sampling.chooser import Chooser
from millstream_worker.engine.runner.sampling.sampler import Sampler
from millstream_worker.engine.runner.self_check.findings import Findings

if TYPE_CHECKING:
    from millstream_worker.engine.assembly.model_images import ModelImages


def runner_for(
    loaded: LoadedModel,
    memory: FittedMemory,
    chooser: Chooser,
    images: ModelImages,
    report: Callable[[str], None],
    mark: Callable[[], None],
) -> tuple[Runner, HostSwap | None]:
    """Returns the runner, whose steps are called from Python, and the host memory of its blocks."""
    config, device = memory.config, loaded.device
    storage = KVStorage(loaded.layer_specs, memory.share.blocks, config.block_size, loaded.dtype, device)
    swap = open_swap(config, memory.host_pages, storage, report)
    sampler = Sampler(loaded.vocab_size, config.max_rows, device, chooser)
    cores = FreeCores(torch.get_num_threads()) if device.type == "cpu" else None
    states = storage_of_states(loaded, config.max_rows, memory.share.places, memory.most_drafts)
    eager = Eager(loaded, storage, sampler.last_tokens, mark, states)
    return Runner(eager, sampler, mark, swap, cores, states, images.steps(eager)), swap


def step_form(
    eager: Eager, memory: FittedMemory, findings: Findings, *, records: bool, compiled: bool
) -> Forward:
    """Returns the form in which steps are computed: from Python, or replayed where that is possible. CUDA
    graphs are recorded and checked here. Raises ValueError if they are asked for and cannot be had."""
    if records:
        return _cuda_graphs(eager, memory, findings)
    if compiled and eager.loaded.device.type == "cpu":
        return replayed(eager, findings.report)
    return eager


def _cuda_graphs(eager: Eager, memory: FittedMemory, findings: Findings) -> Forward:
    config, storage = memory.config, eager.storage
    width = min(-(-memory.context_length // storage.block_size), storage.blocks)
    limits = GraphLimits(config.max_rows, config.max_step_tokens, width, memory.step_bytes)
    try:
        return recording.record(eager, CudaRecorder(eager.loaded.device), limits, findings)
    except CannotRecord as error:
        if config.cuda_graphs == "on":
            raise ValueError(f"cuda_graphs 'on': the model cannot be recorded: {error}") from error
        findings.fall_back(f"no CUDA graphs, steps are launched one operation at a time: {error}")
        return eager
