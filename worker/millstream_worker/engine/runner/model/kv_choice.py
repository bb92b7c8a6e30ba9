"""Which layers keep their keys and values in INT8, and for which models that is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from transformers import PretrainedConfig

from millstream_worker.engine.runner.kv.kv_format import KVFormat
from millstream_worker.engine.runner.kv.layer_spec import LayerSpec


def in_format(kv_dtype: str, layers: Sequence[LayerSpec], config: PretrainedConfig) -> tuple[LayerSpec, ...]:
    """The layers with the format that `kv_dtype` ("auto" or "int8") gives each. A layer with a window keeps
    its own: it stores little that it reads again. Raises ValueError for a model not tested in INT8."""
    if kv_dtype == KVFormat.AS_COMPUTED.value:
        return tuple(layers)
    if kv_dtype != KVFormat.INT8.value:
        raise ValueError(f"kv_dtype is {kv_dtype!r}; it must be 'auto' or 'int8'")
    reason = _reason_against(layers, config)
    if reason is not None:
        raise ValueError(f"kv_dtype {kv_dtype!r}: {reason}; use 'auto'")
    stored = [layer if layer.source is None else layers[layer.source] for layer in layers]
    return tuple(
        layer if where.window is not None else replace(layer, kv_format=KVFormat.INT8)
        for layer, where in zip(layers, stored, strict=True)
    )


def _reason_against(layers: Sequence[LayerSpec], config: PretrainedConfig) -> str | None:
    if any(layer.sinks for layer in layers):
        return "the model's attention has learned sinks, with which INT8 keys and values are not tested"
    if getattr(config.get_text_config(), "kv_lora_rank", None):
        return "the model's attention is latent, with which INT8 keys and values are not tested"
    if all(layer.window is not None for layer in layers):
        return "all layers of the model have a window, and their keys and values stay as they are"
    return None
