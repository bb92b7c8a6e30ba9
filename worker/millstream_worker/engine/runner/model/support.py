"""Which models the engine runs, decided from a model's configuration before any weight is read.

A model type is supported when the tests have compared it with transformers' own generation, row by row.
Everything else is refused with the reason: a model that runs and computes something slightly different is
worse than none.
"""

from __future__ import annotations

from math import inf
from typing import Any

from transformers import PretrainedConfig

PROVEN = frozenset((
    "afmoe", "apertus", "arcee", "axk1", "beam", "biogpt", "bitnet", "cohere", "cohere2", "cohere2_moe",
    "cwm", "deepseek_v2", "deepseek_v3", "dots1", "ernie4_5", "ernie4_5_moe", "exaone4", "exaone_moe",
    "flex_olmo", "flint", "gemma", "gemma2", "gemma3_text", "glm", "glm4", "glm4_moe", "glm4_moe_lite",
    "gpt2", "gpt_bigcode", "gpt_neox", "gpt_oss", "granite", "granite_swa", "granitemoe", "granitemoe_swa",
    "granitemoeshared", "helium", "hunyuan_v1_dense", "hunyuan_v1_moe", "hy_v3", "hyperclovax", "internlm3",
    "iquestcoder", "jais2", "jetmoe", "kolibri1", "laguna", "llama", "longcat_flash", "mellum",
    "mimo_v2_flash", "minicpm3", "minimax_m2", "ministral", "ministral3", "mistral", "mixtral", "nanochat",
    "nemotron", "olmo", "olmo2", "olmo3", "olmoe", "opt", "persimmon", "phi", "phi3", "phimoe", "qwen2",
    "qwen2_moe", "qwen3", "qwen3_moe", "seed_oss", "smollm3", "solar_open", "stablelm", "starcoder2",
    "vaultgemma", "youtu",
))  # fmt: skip

_UNSUPPORTED = {
    "it keeps state other than keys and values (state-space or convolution layers)": (
        "bailing_hybrid", "bamba", "falcon_h1", "falcon_mamba", "granitemoehybrid", "inkling_text",
        "jamba", "lfm2", "lfm2_moe", "lfm3", "mamba", "mamba2", "nemotron_h", "recurrent_gemma", "rwkv",
        "xlstm", "zamba", "zamba2", "zaya",
    ),
    "it uses linear attention, which keeps state other than keys and values": (
        "kimi_linear", "minimax", "olmo_hybrid", "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text",
        "qwen3_5_text", "qwen3_next",
    ),
    "it computes attention in its own code, past transformers' attention interface": (
        "bloom", "codegen", "cpmant", "falcon", "gpt_neo", "gpt_neox_japanese", "gptj", "mpt",
        "openai-gpt", "reformer", "xglm", "xlm", "xlnet",
    ),
    "it shares keys and values between layers": (
        "gemma3n", "gemma3n_text", "gemma4", "gemma4_text", "gemma4_unified", "gemma4_unified_text",
    ),
    "its attention modules call the attention interface more than once": (
        "diffllama",
    ),
    "it attends within chunks that its attention modules do not announce": (
        "llama4", "llama4_text",
    ),
    "it selects or compresses the keys that it attends to": (
        "deepseek_v32", "deepseek_v4", "doge", "glm_moe_dsa",
    ),
}  # fmt: skip
_REASONS = {model_type: reason for reason, model_types in _UNSUPPORTED.items() for model_type in model_types}

_MOST_CONTEXT = 2**27  # tokens: ten times that of any model that is around

_PROVEN_ROPE = frozenset(("default", "linear", "dynamic", "yarn", "longrope", "llama3"))

# Beyond the original length, its frequencies depend on the longest row of a call: a row's neighbours would
# change its keys. Up to that length they are the same for all.
_LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")


class UnsupportedModel(Exception):
    """The model cannot be run; the message names its architecture and the reason."""


def check(config: PretrainedConfig) -> None:
    """Raise `UnsupportedModel` unless models of this configuration are known to be computed correctly."""
    reason = _reason_against(config)
    if reason is not None:
        raise UnsupportedModel(f"{architecture(config)} ({config.model_type}) is not supported: {reason}")


def architecture(config: PretrainedConfig) -> str:
    """The name of the model's class, where its configuration has it, or of its configuration's."""
    named: list[str] | None = getattr(config, "architectures", None)
    return named[0] if named else type(config).__name__


def context_length(config: PretrainedConfig) -> int:
    """Most tokens a row can have with every position computed as the model means it."""
    length: int | None = getattr(config, "max_position_embeddings", None)
    if not length:
        raise UnsupportedModel(
            f"{architecture(config)}: max_position_embeddings is missing in its config.json"
        )
    if not 0 < length <= _MOST_CONTEXT:
        raise UnsupportedModel(
            f"{architecture(config)}: max_position_embeddings is {length} in its config.json, and can be 1 "
            f"to {_MOST_CONTEXT}; correct it, or fetch the file anew"
        )
    for rope in _ropes(config):
        if rope.get("rope_type") in _LENGTH_DEPENDENT_ROPE:
            length = min(length, rope.get("original_max_position_embeddings") or length)
    return length


def context_note(config: PretrainedConfig) -> str | None:
    """Why the context is shorter than the configuration says; None where it is not."""
    length, named = context_length(config), config.max_position_embeddings
    if length == named:
        return None
    return (
        f"context limited to {length} of {named} tokens: beyond, this model's RoPE depends on the longest row"
    )


def _reason_against(config: PretrainedConfig) -> str | None:
    if getattr(config, "is_encoder_decoder", False):
        return "it is an encoder-decoder model; models that continue a text are"
    if config.model_type in _REASONS:
        return _REASONS[config.model_type]
    if config.model_type not in PROVEN:
        return f"it is not among the tested ones, which are {', '.join(sorted(PROVEN))}"
    strange = {rope.get("rope_type") or "default" for rope in _ropes(config)} - _PROVEN_ROPE
    if strange:
        tested = ", ".join(sorted(_PROVEN_ROPE))
        return f"its RoPE is of type {min(strange)!r}, which is not among the tested ones ({tested})"
    for rope in _ropes(config):
        theta = rope.get("rope_theta")
        if theta is not None and not 0 < theta < inf:
            return f"its rope_theta is {theta!r}, and can only be a positive number; correct its config.json"
    quantised = getattr(config, "quantization_config", None)
    if quantised is not None:
        method = quantised.get("quant_method") if isinstance(quantised, dict) else quantised.quant_method
        return (
            f"its weights are quantised ({method}), which only those of GGUF files may be; use one, or the "
            "model in float32, float16 or bfloat16, which MILLSTREAM_WEIGHTS=int8 quantises on a CPU, "
            "and fp8 on a GPU"
        )
    return None


def _ropes(config: PretrainedConfig) -> list[dict[str, Any]]:
    """The RoPE settings: one, or one per kind of layer; an empty one for other positions."""
    parameters: dict[str, Any] = getattr(config, "rope_parameters", None) or {}
    nested = [value for value in parameters.values() if isinstance(value, dict)]
    return nested or [parameters]
