"""Offers a layer's attention as one operation of torch, which a compiler calls and does not look into."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from millstream_worker.engine.runner.native.custom_ops import Numbered, define

# One layer's: query [T, heads, key_dim], key and value [T, kv_heads, …], its sinks to [T, heads, value_dim].
Attention = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]

ATTENTIONS: Numbered[Attention] = Numbered()


def attend(query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None, layer: Tensor) -> Tensor:
    """Computes the attention for which `layer` stands, as an operation that is not traced. That it writes
    keys and values is not declared: nothing else in a compiled layer sees the storage."""
    answer: Tensor = torch.ops.millstream.attend.default(query, key, value, sinks, layer)
    return answer


define(
    "attend(Tensor query, Tensor key, Tensor value, Tensor? sinks, Tensor layer) -> Tensor",
    lambda query, key, value, sinks, layer: ATTENTIONS[layer](query, key, value, sinks),
    lambda query, key, value, sinks, layer: value.new_empty(*query.shape[:2], value.shape[2]),
)
