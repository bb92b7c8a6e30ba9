"""Prefill by torch's FlashAttention over paged keys and values (torch.nn.attention.varlen), for the layers
that it serves better than our own kernel."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from millstream_worker.engine.runner.kv.layer_spec import LayerSpec
from millstream_worker.engine.runner.kv.storage import KVStorage

if TYPE_CHECKING:  # it needs triton
    from millstream_worker.engine.runner.attention.triton.launches import LayerLaunch

Attend = Callable[..., Tensor]
_ARGUMENTS = {"block_table", "seqused_k", "window_size", "enable_gqa", "scale"}
_LEAST_CAPABILITY = (8, 0)
_BLOCK_TOKENS = 256
_MOST_DIM = 256


def choose(spec: LayerSpec, storage: KVStorage) -> Attend | None:
    """Torch's function for a layer that it can prefill; None: our kernel does. Where it can, it is taken for
    the faster one, which no measurement has shown yet. It can where
    - this torch's takes block tables (2.13),
    - the GPU is of compute capability 8.0 or later,
    - blocks are of a multiple of 256 tokens (FlashAttention 2 refuses others, so the default of 16),
    - keys and values are float16 or bfloat16, of one size, which is up to 256 and a multiple of 8,
    - the layer has neither a soft cap nor sinks.
    """
    return find() if _reads(storage) and _computes(spec, storage.dtype) else None


def find() -> Attend | None:
    """Torch's function; None where this torch has none, or one that takes no block tables."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    function = cast(Attend, varlen_attn)  # without the logarithms that it can return, too
    return function if _ARGUMENTS.issubset(inspect.signature(function).parameters) else None


def prefill(attend: Attend, launch: LayerLaunch) -> None:
    """What `launches.prefill` does: the answers of all segments behind the decoding ones."""
    spec, step = launch.spec, launch.step
    launch.out[step.decodes :] = attend(
        launch.query[step.decodes :],
        launch.keys.transpose(1, 2),  # [blocks, block_size, kv_heads, dim]
        launch.values.transpose(1, 2),
        step.prefill_starts,
        None,
        step.longest_query,
        step.longest_context,
        scale=spec.scale,
        window_size=(-1 if spec.window is None else spec.window - 1, 0),
        enable_gqa=spec.heads != spec.kv_heads,
        seqused_k=step.kv_lens[step.decodes :],
        block_table=step.tables[step.decodes :],
    )


def _reads(storage: KVStorage) -> bool:
    return capability(storage.device) >= _LEAST_CAPABILITY and storage.block_size % _BLOCK_TOKENS == 0


def capability(device: torch.device) -> tuple[int, int]:
    """Of CUDA; (0, 0) for other devices."""
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else (0, 0)


def _computes(spec: LayerSpec, dtype: torch.dtype) -> bool:
    return (
        spec.softcap is None
        and not spec.sinks
        and spec.key_dim == spec.value_dim
        and spec.key_dim <= _MOST_DIM
        and spec.key_dim % 8 == 0
        and dtype in (torch.float16, torch.bfloat16)
    )
