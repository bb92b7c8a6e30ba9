"""Chooses the attention backend of a device."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from millstream_worker.engine.protocol.config import cache_folder
from millstream_worker.engine.runner.attention.interface import AttentionBackend
from millstream_worker.engine.runner.attention.torch_backend import TorchAttention
from millstream_worker.engine.runner.kv.storage import KVStorage
from millstream_worker.engine.runner.native.build import build
from millstream_worker.engine.runner.native.compiler import CannotBuild
from millstream_worker.engine.runner.native.library import ENTRIES, Library
from millstream_worker.engine.runner.states.state_backend import StateBackend
from millstream_worker.engine.runner.states.state_storage import StateStorage
from millstream_worker.engine.runner.states.torch_states import TorchStates

if TYPE_CHECKING:
    from millstream_worker.engine.runner.gpu.gpu import Gpu


@dataclass(frozen=True, slots=True)
class AttentionChoice:
    """A backend that this device can have."""

    name: str  # torch | native | triton
    reason: str  # for the operator
    build: Callable[[KVStorage], AttentionBackend]
    library: Library | None = None  # native's, which multiplies matrices as well
    fallback: bool = False  # a faster one cannot be had
    build_states: Callable[[StateStorage], StateBackend] = TorchStates  # of models that keep some


def choose(
    name: str,
    device: torch.device,
    dtype: torch.dtype,
    cache_dir: str = "",
    gpu: Gpu | None = None,
    report: Callable[[str], None] = lambda line: None,
    mark: Callable[[], None] = lambda: None,
) -> AttentionChoice:
    """Returns the backend for what was asked ("auto" or a name), with keys and values of `dtype`. ValueError
    if it cannot run here. What is compiled is kept in `cache_dir` ("": ~/.cache/millstream); that is told to
    `report`, and `mark` is called meanwhile."""
    if name == "auto" and gpu is not None and not gpu.runs_our_kernels:
        reason = "plain PyTorch: the kernels need compute capability 8.0, this GPU has {}.{}"
        return AttentionChoice("torch", reason.format(*gpu.capability), TorchAttention, fallback=True)
    if device.type == "cuda" and name in ("auto", "triton"):
        os.environ.setdefault("TRITON_CACHE_DIR", str(cache_folder(cache_dir) / "triton"))  # Triton reads it
        return AttentionChoice("triton", "Triton kernels on CUDA", _triton)
    if name == "triton":
        raise ValueError(
            f"attention 'triton' needs a CUDA device, this is {device.type}; use 'native', 'torch' or 'auto'"
        )
    if name == "torch":
        return AttentionChoice("torch", "plain PyTorch, as asked for", TorchAttention)
    if device.type != "cpu":
        if name == "native":
            raise ValueError(f"attention 'native' needs the CPU, this is {device.type}; use 'auto'")
        return AttentionChoice(
            "torch", f"plain PyTorch, there is nothing else for {device.type}", TorchAttention
        )
    return _on_the_cpu(name, dtype, lambda: build(cache_folder(cache_dir), report=report, mark=mark))


def _on_the_cpu(name: str, dtype: torch.dtype, library_built: Callable[[], Library]) -> AttentionChoice:
    from millstream_worker.engine.runner.attention.native.native_backend import NativeAttention
    from millstream_worker.engine.runner.self_check.deviation import Mismatch
    from millstream_worker.engine.runner.self_check.library_check import check
    from millstream_worker.engine.runner.states.native_states import native_states

    try:
        if (dtype, dtype) not in ENTRIES:
            raise CannotBuild(f"it does not compute {str(dtype).removeprefix('torch.')}")
        library = library_built()
        check(library)
    except (CannotBuild, Mismatch) as error:
        if name == "native":
            raise ValueError(f"attention 'native' cannot be had: {error}; use 'torch' or 'auto'") from error
        reason = f"plain PyTorch, as native code, which is faster, cannot be had: {error}"
        return AttentionChoice("torch", reason, TorchAttention, fallback=True)
    reason = "compiled for this processor"
    if dtype == torch.bfloat16:
        reason += f", multiplies bfloat16 as {library.bfloat16_products}"
    return AttentionChoice(
        "native",
        reason,
        lambda storage: NativeAttention(storage, library),
        library,
        build_states=lambda storage: native_states(storage, library),
    )


def _triton(storage: KVStorage) -> AttentionBackend:
    from millstream_worker.engine.runner.gpu.attention.triton_backend import (
        TritonAttention,  # needs triton
    )

    return TritonAttention(storage)
