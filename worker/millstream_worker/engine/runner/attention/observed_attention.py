"""Sees what modules hand to the attention function that is registered."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface

from millstream_worker.engine.runner.kv.layer_spec import LayerSpec


@dataclass(frozen=True, slots=True, eq=False)
class AttentionCall:
    """A call of the attention interface."""

    module: nn.Module
    spec: LayerSpec
    key: Tensor
    value: Tensor
    tensors: frozenset[str]  # names of the options that are tensors


@contextlib.contextmanager
def observed_attentions(name: str) -> Iterator[list[AttentionCall]]:
    """Collects the calls of the attention function that is registered as `name`; one with the keys and values
    of an earlier one has that as its source. It answers with the values' mean, of no head or token in
    particular, which is not finite where something that it was given is not."""
    calls: list[AttentionCall] = []

    def attend(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: None, **options: Any
    ) -> tuple[Tensor, None]:
        tensors = frozenset(name for name, option in options.items() if isinstance(option, Tensor))
        earlier = (number for number, call in enumerate(calls) if call.key is key and call.value is value)
        spec = replace(_layer_spec(query, key, value, options), source=next(earlier, None))
        calls.append(AttentionCall(module, spec, key, value, tensors))
        _, heads, tokens, _ = query.shape
        mean = value.mean(1, keepdim=True) + 0 * (query.sum() + key.sum())
        return value.new_zeros(1, tokens, heads, value.shape[3]) + mean.transpose(1, 2), None

    registered = AttentionInterface()[name]
    AttentionInterface.register(name, attend)
    try:
        yield calls
    finally:
        AttentionInterface.register(name, registered)


def _layer_spec(query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]) -> LayerSpec:
    """Returns the spec of what an attention module hands over, [1, heads, T, head_dim] each."""
    scale = options.get("scaling")
    return LayerSpec(
        heads=query.shape[1],
        kv_heads=key.shape[1],
        key_dim=key.shape[3],
        value_dim=value.shape[3],
        scale=query.shape[3] ** -0.5 if scale is None else float(scale),
        window=options.get("sliding_window"),
        softcap=options.get("softcap"),
        sinks=options.get("s_aux") is not None,
    )
