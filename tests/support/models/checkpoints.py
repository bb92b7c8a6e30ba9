"""Tiny random checkpoints, one per architecture, made on the fly, and plain transformers as the reference
for them.

They are initialised so that outputs vary: large weights, embeddings that do not drown the layers'
contribution, and norms and biases that are not at their neutral values.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

VOCABULARY = 128
CONTEXT = 160  # max_position_embeddings
WINDOW = 12  # where a model has sliding windows
ORIGINAL = 32  # RoPE length before scaling

SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": CONTEXT,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_GPT2 = {"n_positions": CONTEXT, "n_embd": 32, "n_layer": 2, "n_head": 4}
_MOE = {"num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
_ROUTED = {
    "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1, "first_k_dense_replace": 1,
    "moe_intermediate_size": 24, "n_group": 2, "topk_group": 1,
}  # fmt: skip
_LATENT = {
    "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 12,
    "num_key_value_heads": 4,
}  # fmt: skip
_DENSE_FIRST = {"mlp_layer_types": ["dense", "sparse"]}
_SHARED_EXPERTS = {**_MOE, "head_dim": 8, "shared_expert_intermediate_size": 24, "num_shared_experts": 1}
_SCALED = {"embedding_multiplier": 2.0, "logits_scaling": 2.0, "residual_multiplier": 0.8,
           "attention_multiplier": 0.3}  # fmt: skip
_MIXED = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": WINDOW}
_FOUR = {"num_hidden_layers": 4, "layer_types": 2 * _MIXED["layer_types"], "sliding_window": WINDOW}
_SOURCES = {**_FOUR, "num_kv_shared_layers": 2, "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": VOCABULARY, "head_dim": 8}  # fmt: skip
_GEMMA4 = {**_SOURCES, "global_head_dim": 16}
_KEYS_AS_VALUES = {**_GEMMA4, "num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0,
                   "attention_k_eq_v": True, "num_global_key_value_heads": 1}  # fmt: skip
_MIXERS = ["linear_attention", "full_attention", "linear_attention", "full_attention"]
_DELTA = {"num_hidden_layers": 4, "layer_types": _MIXERS, "head_dim": 8, "linear_num_key_heads": 2,
          "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
          "linear_conv_kernel_dim": 4}  # fmt: skip
_SCANS = {"num_hidden_layers": 4, "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8,
          "mamba_n_groups": 2, "mamba_expand": 2, "mamba_d_conv": 4, "mamba_chunk_size": 16}  # fmt: skip
_NEMOTRON = {"num_hidden_layers": 4, "mamba_num_heads": 8, "mamba_head_dim": 8, "ssm_state_size": 8,
             "n_groups": 2, "conv_kernel": 4, "chunk_size": 16, "head_dim": 8}  # fmt: skip
_CONVOLUTIONS = {"num_hidden_layers": 4, "layer_types": ["conv", "full_attention", "conv", "conv"],
                 "conv_L_cache": 3}  # fmt: skip
_CHANNELS = {**_LATENT, "num_hidden_layers": 4, "layer_types": _MIXERS, "q_lora_rank": None, "n_group": 1,
             "topk_group": 1, "linear_num_heads": 4, "linear_head_dim": 8}  # fmt: skip
_LINEAR = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
_YARN = {**_LINEAR, "rope_type": "yarn", "factor": 5.0, "original_max_position_embeddings": ORIGINAL}
_LLAMA3 = {**_YARN, "rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_TEMPERED = {**_YARN, "mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": 4.0, "beta_slow": 1.0,
             "llama_4_scaling_beta": 0.1}  # fmt: skip
_DYNAMIC = {**_LINEAR, "rope_type": "dynamic"}
_LONG = {
    "rope_type": "longrope", "rope_theta": 10000.0,
    "short_factor": [1.0, 1.5, 2.0, 3.0], "long_factor": [2.0, 3.0, 4.0, 5.0],
}  # fmt: skip

# name of a case: model type, and what its configuration has besides the sizes
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "afmoe": ("afmoe", {**_SHARED_EXPERTS, "num_dense_layers": 1, **_MIXED}),
    "apertus": ("apertus", {"rope_parameters": _LLAMA3}),
    "arcee": ("arcee", {}),
    "axk1": ("axk1", {**_LATENT, **_ROUTED, **_DENSE_FIRST}),
    "bamba": ("bamba", {**_SCANS, "attn_layer_indices": [1, 3]}),
    "beam": ("beam", {**_SHARED_EXPERTS, "n_group": 2, "topk_group": 1, **_MIXED}),
    "biogpt": ("biogpt", {}),
    "bitnet": ("bitnet", {}),
    "cohere": ("cohere", {"logit_scale": 0.5, "use_qk_norm": True}),
    "cohere2": ("cohere2", {"logit_scale": 0.5, **_MIXED}),
    "cohere2_moe": ("cohere2_moe", {**_SHARED_EXPERTS, "logit_scale": 0.5, **_MIXED}),
    "cwm": ("cwm", {"rope_parameters": _LLAMA3, **_MIXED}),
    "deepseek_v2": ("deepseek_v2", {**_LATENT, **_ROUTED}),
    "deepseek_v3": ("deepseek_v3", {**_LATENT, **_ROUTED}),
    "dots1": ("dots1", {**_MIXED, **_ROUTED}),
    "ernie4_5": ("ernie4_5", {}),
    "ernie4_5_moe": ("ernie4_5_moe", {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 24,
                                      "moe_layer_start_index": 0}),
    "exaone4": ("exaone4", {**_MIXED}),
    "exaone_moe": ("exaone_moe", {**_SHARED_EXPERTS, "first_k_dense_replace": 1, "n_group": 2,
                                  "topk_group": 1, "sliding_window_pattern": 2, **_MIXED}),
    "falcon_h1": ("falcon_h1", {**_SCANS, "mamba_d_ssm": 64}),
    "flex_olmo": ("flex_olmo", {**_MOE}),
    "flint": ("flint", {**_SHARED_EXPERTS, **_MIXED}),
    "gemma": ("gemma", {"head_dim": 16, "num_key_value_heads": 1}),
    "gemma2": ("gemma2", {"head_dim": 16, "query_pre_attn_scalar": 12, "attn_logit_softcapping": 1.5,
                          "final_logit_softcapping": 4.0, **_MIXED}),
    "gemma3_text": ("gemma3_text", {"head_dim": 16, "query_pre_attn_scalar": 12, **_MIXED}),
    "gemma3n_text": ("gemma3n_text", {**_SOURCES, "laurel_rank": 8, "altup_num_inputs": 2,
                                      "activation_sparsity_pattern": [0.5, 0.5, 0.0, 0.0]}),
    "gemma4_text": ("gemma4_text", {**_GEMMA4}),
    "gemma4-keys": ("gemma4_text", {**_KEYS_AS_VALUES}),
    "gemma4-experts": ("gemma4_text", {**_KEYS_AS_VALUES, "enable_moe_block": True, "num_experts": 4,
                                       "top_k_experts": 2, "moe_intermediate_size": 24,
                                       "final_logit_softcapping": 4.0}),
    "gemma4-wide": ("gemma4_text", {**_GEMMA4, "use_double_wide_mlp": True}),
    "gemma4_unified_text": ("gemma4_unified_text", {**_GEMMA4}),
    "glm": ("glm", {"head_dim": 8}),
    "glm4": ("glm4", {"head_dim": 8}),
    "glm4_moe": ("glm4_moe", {"head_dim": 8, **_ROUTED}),
    "glm4_moe_lite": ("glm4_moe_lite", {**_LATENT, **_ROUTED, **_DENSE_FIRST}),
    "gpt2": ("gpt2", {**_GPT2}),
    "gpt2-inverse": ("gpt2", {**_GPT2, "scale_attn_by_inverse_layer_idx": True}),
    "gpt_bigcode": ("gpt_bigcode", {**_GPT2}),
    "gpt_neox": ("gpt_neox", {"rotary_pct": 0.5}),
    "gpt_oss": ("gpt_oss", {"head_dim": 8, "rope_parameters": _YARN, **_MOE, **_MIXED}),
    "granite": ("granite", {**_SCALED}),
    "granite_swa": ("granite_swa", {**_SCALED, **_MIXED}),
    "granitemoe": ("granitemoe", {**_MOE}),
    "granitemoe_swa": ("granitemoe_swa", {**_MOE, "shared_intermediate_size": 24, **_MIXED}),
    "granitemoehybrid": ("granitemoehybrid", {**_SCANS, **_MOE, "shared_intermediate_size": 24,
                                              "layer_types": ["mamba", "attention"] * 2}),
    "granitemoeshared": ("granitemoeshared", {**_MOE, "shared_intermediate_size": 24}),
    "helium": ("helium", {"head_dim": 8}),
    "hunyuan_v1_dense": ("hunyuan_v1_dense", {"head_dim": 8}),
    "hunyuan_v1_moe": ("hunyuan_v1_moe", {"head_dim": 8, "num_experts": 4, "moe_topk": 2}),
    "hy_v3": ("hy_v3", {**_SHARED_EXPERTS}),
    "hyperclovax": ("hyperclovax", {**_SCALED}),
    "internlm3": ("internlm3", {}),
    "iquestcoder": ("iquestcoder", {}),
    "jais2": ("jais2", {"head_dim": 8}),
    "jetmoe": ("jetmoe", {"kv_channels": 8, **_MOE}),
    "kimi_linear": ("kimi_linear", {**_MOE, **_CHANNELS, "num_experts_per_token": 2}),
    "kolibri1": ("kolibri1", {**_SHARED_EXPERTS, **_MIXED}),
    "laguna": ("laguna", {**_SHARED_EXPERTS, **_MIXED, "num_attention_heads_per_layer": [4, 2]}),
    "lfm2": ("lfm2", {**_CONVOLUTIONS, "block_multiple_of": 8}),
    "lfm2_moe": ("lfm2_moe", {**_CONVOLUTIONS, **_MOE, "num_dense_layers": 1}),
    "lfm3": ("lfm3", {**_CONVOLUTIONS}),
    "llama": ("llama", {}),
    "llama-linear": ("llama", {"rope_parameters": _LINEAR, "head_dim": 12, "attention_bias": True}),
    "llama-llama3": ("llama", {"rope_parameters": _LLAMA3, "tie_word_embeddings": True}),
    "llama-yarn": ("llama", {"rope_parameters": _YARN}),
    "llama-dynamic": ("llama", {"rope_parameters": _DYNAMIC}),
    "longcat_flash": ("longcat_flash", {**_LATENT, "head_dim": 8, "num_hidden_layers": 4, "moe_topk": 2,
                                        "n_routed_experts": 4, "zero_expert_num": 2, "ffn_hidden_size": 48,
                                        "expert_ffn_hidden_size": 24}),
    "mellum": ("mellum", {**_SHARED_EXPERTS, **_MIXED}),
    "mimo_v2_flash": ("mimo_v2_flash", {**_ROUTED, "head_dim": 12, "v_head_dim": 8, **_MIXED}),
    "minicpm3": ("minicpm3", {**_LATENT}),
    "minimax_m2": ("minimax_m2", {"head_dim": 8, **_MOE}),
    "ministral": ("ministral", {"head_dim": 8, **_MIXED}),
    "ministral3": ("ministral3", {"head_dim": 8, "rope_parameters": _TEMPERED}),
    "mistral": ("mistral", {"sliding_window": WINDOW}),
    "mistral-full": ("mistral", {"sliding_window": None, "head_dim": 16}),
    "mixtral": ("mixtral", {"sliding_window": WINDOW, **_MOE}),
    "nanochat": ("nanochat", {}),
    "nemotron": ("nemotron", {}),
    "nemotron_h": ("nemotron_h", {**_NEMOTRON, "layers_block_type": ["mamba", "attention", "mlp", "mamba"]}),
    "nemotron_h-experts": ("nemotron_h", {**_NEMOTRON, **_ROUTED, "moe_shared_expert_intermediate_size": 24,
                                          "layers_block_type": ["mamba", "attention", "moe", "mamba"]}),
    "olmo": ("olmo", {"clip_qkv": 2.0}),
    "olmo2": ("olmo2", {}),
    "olmo3": ("olmo3", {**_MIXED}),
    "olmo_hybrid": ("olmo_hybrid", {**_DELTA}),
    "olmoe": ("olmoe", {**_MOE}),
    "opt": ("opt", {"ffn_dim": 48, "word_embed_proj_dim": 32}),
    "persimmon": ("persimmon", {"num_key_value_heads": 4, "partial_rotary_factor": 0.75,
                                "qk_layernorm": False}),
    "phi": ("phi", {"partial_rotary_factor": 0.5}),
    "phi3": ("phi3", {"sliding_window": WINDOW}),
    "phi3-longrope": ("phi3", {"rope_parameters": _LONG, "original_max_position_embeddings": CONTEXT,
                               "max_position_embeddings": 8 * CONTEXT}),
    "phimoe": ("phimoe", {**_MOE}),
    "qwen2": ("qwen2", {}),
    "qwen2-window": ("qwen2", {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}),
    "qwen2_moe": ("qwen2_moe", {**_MOE, "shared_expert_intermediate_size": 24}),
    "qwen3": ("qwen3", {"head_dim": 16}),
    "qwen3-yarn": ("qwen3", {"head_dim": 8, "rope_parameters": _YARN}),
    "qwen3_5_moe_text": ("qwen3_5_moe_text", {**_DELTA, **_MOE, "shared_expert_intermediate_size": 24}),
    "qwen3_5_text": ("qwen3_5_text", {**_DELTA}),
    "qwen3_moe": ("qwen3_moe", {"head_dim": 8, **_MOE}),
    "qwen3_next": ("qwen3_next", {**_DELTA, **_MOE, "shared_expert_intermediate_size": 24}),
    "seed_oss": ("seed_oss", {"head_dim": 8}),
    "smollm3": ("smollm3", {"no_rope_layers": [1, 0], "use_sliding_window": True, "sliding_window": WINDOW}),
    "solar_open": ("solar_open", {"head_dim": 8, **_ROUTED}),
    "stablelm": ("stablelm", {"partial_rotary_factor": 0.5, "qk_layernorm": True}),
    "starcoder2": ("starcoder2", {"sliding_window": WINDOW}),
    "vaultgemma": ("vaultgemma", {"head_dim": 16, "query_pre_attn_scalar": 12,
                                  "attn_logit_softcapping": 1.5, **_MIXED}),
    "youtu": ("youtu", {**_LATENT}),
}  # fmt: skip

# One for each mechanism: the fast tests' share of CASES.
MECHANISMS = {
    "llama",  # grouped queries
    "llama-llama3",  # scaled rotary positions, tied embeddings
    "gpt2",  # learned positions, Conv1D
    "phi",  # rotary positions of a part of each head
    "phi3-longrope",  # rotary positions by the longest row, fused siblings
    "qwen3",  # norms of queries and keys
    "mistral",  # a sliding window
    "gemma2",  # soft caps, windows in some layers
    "smollm3",  # layers without positions
    "mixtral",  # experts
    "deepseek_v3",  # latent attention, routed experts
    "gpt_oss",  # learned sinks
    "gemma4_text",  # layers that read the keys and values of others, heads wider in some layers
    "laguna",  # layers with different numbers of heads
    "lfm2",  # short convolutions
    "qwen3_5_text",  # the gated delta rule
    "nemotron_h",  # Mamba-2's scans, layers with neither attention nor a state
    "kimi_linear",  # that with a decay for each channel
    "longcat_flash",  # two attention modules a layer, experts that compute nothing
}


# Those that keep a recurrent state beside keys and values.
RECURRENT = {
    "bamba", "falcon_h1", "granitemoehybrid", "kimi_linear", "lfm2", "lfm2_moe", "lfm3", "nemotron_h",
    "nemotron_h-experts", "olmo_hybrid", "qwen3_5_moe_text", "qwen3_5_text",
    "qwen3_next",
}  # fmt: skip


DELTA_RULES = {"kimi_linear", "olmo_hybrid", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next"}


def tolerance(case: str) -> float:
    """Of logits and logprobs, which are of the order of 5. With delta rules transformers is that far off."""
    return 2e-4 if case in DELTA_RULES else 5e-5


def build(case: str, folder: Path, *, dtype: torch.dtype = torch.float32, **overrides: Any) -> Path:
    """Write the checkpoint of a case to a folder of its own under `folder` and return that."""
    model_type, options = CASES[case]
    config = AutoConfig.for_model(model_type, **{**SIZES, **options, **overrides})
    with torch.random.fork_rng(), quiet():
        torch.manual_seed(7)
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
        spread(model)
        model.save_pretrained(folder / case)
    return folder / case


@torch.no_grad()
def spread(model: PreTrainedModel) -> None:
    """Random weights under which every part of the model matters for the tokens that it gives."""
    tied = model.get_input_embeddings().weight is model.get_output_embeddings().weight
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:  # norms, biases, sinks: around what they are
            parameter.add_(torch.randn_like(parameter) * 0.2)
            if name.endswith("A_log"):  # states that last: of a delta rule hardly a token's would otherwise
                parameter.sub_(3)
        elif "embed" in name or "wte" in name or "wpe" in name:
            parameter.normal_(std=0.1 if tied else 0.5)
        else:
            parameter.normal_(std=1.6 * parameter.shape[-1] ** -0.5)


def plain(folder: Path) -> PreTrainedModel:
    """The same checkpoint in plain transformers with eager attention, float32."""
    with quiet():
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        )
    return model.eval()


@torch.inference_mode()
def generate(model: PreTrainedModel, prompt: list[int], tokens: int) -> list[int]:
    """Greedy continuation of one prompt, alone, by transformers' own `generate`; it does not stop at an end
    token."""
    ids = torch.tensor([prompt])
    model.generation_config.eos_token_id = None
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False)
    return [int(token) for token in out[0, len(prompt) :]]


@torch.inference_mode()
def logits(model: PreTrainedModel, tokens: list[int]) -> torch.Tensor:
    """Logits [tokens, vocabulary] of one text, alone, without a cache."""
    return model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].float()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without transformers' progress bars and advice."""
    from transformers.utils import logging as transformers_logging

    logger = logging.getLogger("transformers")
    level, bars = logger.level, transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
        if bars:
            transformers_logging.enable_progress_bar()
