"""Attention that has been checked on its device with the loaded model's layers, or PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from millstream_worker.engine.protocol.frames import Tried
from millstream_worker.engine.runner.attention.torch_backend import TorchAttention
from millstream_worker.engine.runner.device.transfer import settle
from millstream_worker.engine.runner.model.load import LoadedModel
from millstream_worker.engine.runner.self_check.attention_check import check_attention
from millstream_worker.engine.runner.self_check.attention_steps import CONTEXTS, SHORT_CONTEXTS
from millstream_worker.engine.runner.self_check.findings import Findings, short


def checked_attention(
    loaded: LoadedModel,
    named: str,
    block_size: int,
    findings: Findings,
    mark: Callable[[], None] = lambda: None,
) -> LoadedModel:
    """Returns the model, with PyTorch's attention where its own fails in whatever way. Raises ValueError if
    the one that fails is what the operator has `named` ("auto": nothing)."""
    if loaded.attention == "torch":
        return loaded
    contexts = SHORT_CONTEXTS if loaded.device.type == "cpu" else CONTEXTS
    given = (loaded.layer_specs, loaded.dtype, loaded.device, block_size, contexts, mark)
    findings.report(Tried.ATTENTION)
    try:
        worst = check_attention(loaded.attend_over, *given)
    except (MemoryError, torch.OutOfMemoryError) as error:
        findings.unchecked("attention", short(error))
        return loaded
    except Exception as error:  # of a compiler, a driver, a library, or a mismatch
        settle(loaded.device)
        reason = short(error)
        if named != "auto":
            raise ValueError(
                f"attention {named!r} does not work here: {reason}; use 'torch' or 'auto'"
            ) from error
        findings.fall_back(f"attention: plain PyTorch, slower than {loaded.attention}: {reason}")
        notes = tuple(note for note in loaded.notes if not note.startswith("attention: "))
        return replace(loaded, attention="torch", attend_over=TorchAttention, notes=notes)
    findings.passed("attention", worst)
    return loaded
