"""Loads the model, and checks on the device what computes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from millstream_worker.engine.assembly.chosen_device import ChosenDevice
from millstream_worker.engine.protocol.config import EngineConfig
from millstream_worker.engine.runner.checkpoint.checkpoint import Checkpoint
from millstream_worker.engine.runner.device.cpu_threads import use_threads
from millstream_worker.engine.runner.model.checked_attention import checked_attention
from millstream_worker.engine.runner.model.checked_states import checked_states
from millstream_worker.engine.runner.model.dtypes import DTYPES, computed_in
from millstream_worker.engine.runner.model.load import LoadedModel, load_model
from millstream_worker.engine.runner.model_config.config_file import load_config
from millstream_worker.engine.runner.model_config.support import check
from millstream_worker.engine.runner.self_check.findings import Findings
from millstream_worker.engine.runner.self_check.product_check import check_products

if TYPE_CHECKING:
    from millstream_worker.engine.runner.gpu.gpu import Gpu


def load_checked(
    config: EngineConfig,
    checkpoint: Checkpoint,
    chosen: ChosenDevice,
    findings: Findings,
    mark: Callable[[], None],
) -> LoadedModel:
    """Returns the model with attention that works here. Raises what `load_model` and the checks raise."""
    report, folder = findings.report, str(checkpoint.folder)
    report(f"loading {checkpoint.name} from {folder}")
    loaded = load_model(
        folder,
        dtype=_dtype(config.dtype, folder, chosen.gpu, report),
        device=chosen.device,
        attention=config.attention,
        weights=_weights(config),
        kv_dtype=config.kv_dtype,
        cache_dir=config.cache_dir,
        gpu=chosen.gpu,
        report=report,
        mark=mark,
    )
    if chosen.gpu:  # the host prepares small tensors only: more threads would only spin
        use_threads(config.threads or 1)
    findings.fallbacks += loaded.fallbacks
    loaded = checked_attention(loaded, config.attention, config.block_size, findings, mark)
    loaded = checked_states(loaded, config.attention, findings, mark)
    check_products(loaded.model, findings)
    return loaded


def _dtype(name: str, folder: str, gpu: Gpu | None, report: Callable[[str], None]) -> torch.dtype:
    if name != "auto":
        return DTYPES[name]
    own: torch.dtype | None = check(load_config(folder)).dtype
    chosen = computed_in(own, gpu)
    if own not in (None, chosen):
        report(f"the checkpoint's precision, {own}, is not computed well here: it becomes {chosen}")
    return chosen


def _weights(config: EngineConfig) -> str:
    """With a precision that was asked for, quantised checkpoints are dequantised: the reference for them."""
    return "dequantized" if config.weights == "auto" and config.dtype != "auto" else config.weights
