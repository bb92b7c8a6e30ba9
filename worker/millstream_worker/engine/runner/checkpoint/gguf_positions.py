"""Reads from a GGUF file how a model's rotary positions are scaled, which transformers leaves out: of the
architectures that it reads, it does so for gpt-oss alone."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
from gguf import GGUFReader
from transformers import PretrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

_READ_BY_TRANSFORMERS = "gpt-oss"
_FREQUENCIES = "rope_freqs.weight"
_LONG = "rope_factors_long.weight"
_LLAMA3 = {  # of all models that have it
    "rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip
_SCALED = ("linear", "yarn")
_SCALED_LAYERS = "full_attention"  # where layers differ, those with a window keep theirs
_WIDE_GEMMA3 = 62  # layers of the one whose queries are scaled by its width: llama.cpp knows it by them, too


def set_positions(config: PretrainedConfig, reader: GGUFReader, architecture: str) -> None:
    """Completes the configuration that transformers read. Raises ValueError for a scaling that is not
    computed."""
    if architecture == _READ_BY_TRANSFORMERS:
        return
    if architecture == "gemma3" and config.num_hidden_layers == _WIDE_GEMMA3:
        config.query_pre_attn_scalar = config.hidden_size // config.num_attention_heads
    if architecture == "lfm2":
        config.norm_eps = float(_value(reader, gguf.Keys.Attention.LAYERNORM_RMS_EPS, architecture))
    tensors = {tensor.name: tensor.data for tensor in reader.tensors if tensor.name in (_FREQUENCIES, _LONG)}
    if _LONG in tensors:
        raise ValueError("its positions are scaled by longrope, which is read from safetensors only")
    found = _scaling(reader, architecture)
    if (factors := tensors.get(_FREQUENCIES)) is not None:
        found = {**_LLAMA3, "factor": float(np.max(factors))}
        _check(config, found, factors)
    if found:
        parameters = config.rope_parameters
        scaled = parameters.get(_SCALED_LAYERS, parameters)
        scaled.update(found)


def _scaling(reader: GGUFReader, architecture: str) -> dict[str, Any]:
    """Returns what the file's fields say; nothing where positions are plain."""
    kind = _value(reader, gguf.Keys.Rope.SCALING_TYPE, architecture) or "none"
    if kind == "none":
        return {}
    if kind not in _SCALED:
        raise ValueError(f"its positions are scaled by {kind}, which is read from safetensors only")
    factor = _value(reader, gguf.Keys.Rope.SCALING_FACTOR, architecture)
    if not factor or factor < 0:
        raise ValueError(
            f"its rope.scaling.factor is {factor}, and can only be a positive number; fetch it anew"
        )
    found = {"rope_type": kind, "factor": float(factor)}
    if original := _value(reader, gguf.Keys.Rope.SCALING_ORIG_CTX_LEN, architecture):
        found["original_max_position_embeddings"] = int(original)
    return found


def _value(reader: GGUFReader, key: str, architecture: str) -> Any:
    field = reader.get_field(key.format(arch=architecture))
    return None if field is None else field.contents()


def _check(config: PretrainedConfig, found: dict[str, Any], factors: np.ndarray[Any, Any]) -> None:
    """Raises ValueError unless the scaling divides the frequencies by the file's factors."""
    wanted: PretrainedConfig = type(config).from_dict(config.to_dict())
    wanted.rope_parameters = {**config.rope_parameters, **found}
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](wanted, None)
    plain = config.rope_parameters["rope_theta"] ** (-np.arange(len(factors)) / len(factors))
    if len(scaled) != len(factors) or not np.allclose(plain / scaled.numpy(), factors, rtol=1e-3):
        raise ValueError(
            "its positions are scaled by factors of its own, which are read from safetensors only"
        )
