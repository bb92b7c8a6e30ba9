"""Offers a layer's attention as one operation of torch, which a compiler calls and does not look into.

Compiled code is the same for all layers of a kind, so it cannot hold a layer's attention: it is given a
tensor with the layer's number among the registered ones.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from millstream_worker.engine.runner.native.custom_ops import define

# One layer's: query [T, heads, key_dim], key and value [T, kv_heads, …], its sinks to [T, heads, value_dim].
Attention = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]

_numbers = itertools.count()
# Operations are global to a process, and get no objects: this is how the code of one finds a layer.
_registered: WeakValueDictionary[int, Attention] = WeakValueDictionary()


def register(attention: Attention) -> Tensor:
    """Returns the int64 tensor on the CPU by which `attend` finds `attention`, while somebody holds that."""
    number = next(_numbers)
    _registered[number] = attention
    with torch.inference_mode(False):  # code that was compiled for a usual tensor takes no other
        return torch.tensor(number)


def attend(query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None, layer: Tensor) -> Tensor:
    """Computes the attention that `register` gave `layer` for, as an operation that is not traced. That it
    writes keys and values is not declared: nothing else in a compiled layer sees the storage."""
    answer: Tensor = torch.ops.millstream.attend.default(query, key, value, sinks, layer)
    return answer


define(
    "attend(Tensor query, Tensor key, Tensor value, Tensor? sinks, Tensor layer) -> Tensor",
    lambda query, key, value, sinks, layer: _registered[int(layer)](query, key, value, sinks),
    lambda query, key, value, sinks, layer: value.new_empty(*query.shape[:2], value.shape[2]),
)
