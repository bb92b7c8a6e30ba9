"""Prefill by torch's FlashAttention over paged keys and values (torch.nn.attention.varlen), where this torch
has it. It knows neither soft caps nor sinks."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from millstream_worker.engine.runner.attention.interface import LayerSpec

if TYPE_CHECKING:  # it needs triton
    from millstream_worker.engine.runner.attention.triton_calls import Call

Attend = Callable[..., Tensor]
_ARGUMENTS = {"block_table", "seqused_k", "window_size", "enable_gqa", "scale"}
_MOST_DIM = 256


def find() -> Attend | None:
    """Torch's function; None where this torch has none, or one that takes no block tables."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    function = cast(Attend, varlen_attn)  # without the logarithms that it can return, too
    return function if _ARGUMENTS.issubset(inspect.signature(function).parameters) else None


def suits(spec: LayerSpec, dtype: torch.dtype) -> bool:
    return (
        spec.softcap is None
        and not spec.sinks
        and spec.key_dim == spec.value_dim
        and spec.key_dim <= _MOST_DIM
        and spec.key_dim % 8 == 0
        and dtype in (torch.float16, torch.bfloat16)
    )


def prefill(attend: Attend, call: Call) -> None:
    """What `triton_calls.prefill` does: the answers of all segments behind the decoding ones."""
    spec, step = call.spec, call.step
    call.out[step.decodes :] = attend(
        call.query[step.decodes :],
        call.keys.transpose(1, 2),  # [blocks, block_size, kv_heads, dim]
        call.values.transpose(1, 2),
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
