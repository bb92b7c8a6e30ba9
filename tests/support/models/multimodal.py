"""Tiny random multimodal checkpoints, saved by transformers under the names that published ones have, and the
whole models as references for their text halves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PretrainedConfig,
    PreTrainedModel,
)

from support.models.checkpoints import SIZES, VOCABULARY, WINDOW, quiet, spread

_TOWER = {
    "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "depth": 1, "num_attention_heads": 2,
    "num_heads": 2, "embed_dim": 32, "out_hidden_size": 32, "hidden_act": "gelu",
}  # fmt: skip
_IMAGE = {"image_size": 28, "patch_size": 14}
_FIRST_LAYER = ("deepstack_visual_indexes", "fullatt_block_indexes")
_HEADS = {"head_dim": 8}
_MROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}
_MIXED_MROPE = {**_MROPE, "mrope_interleaved": True}
_HALF_MROPE = {**_MROPE, "partial_rotary_factor": 0.5, "mrope_section": [1, 1, 0]}
_PART_MROPE = {**_MIXED_MROPE, "partial_rotary_factor": 0.5, "mrope_section": [1, 1, 0]}
_DELTA = {
    **_HEADS, "layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2,
    "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
}  # fmt: skip
_CONVOLUTIONS = {"layer_types": ["conv", "full_attention"], "conv_L_cache": 3}
_XDROPE = {"rope_type": "default", "rope_theta": 10000.0, "xdrope_section": [1, 1, 1, 1]}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
_GEMMA = {
    **_HEADS, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": VOCABULARY,
    "sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"],
}  # fmt: skip

# Name of a case: type of the whole, and what its text configuration has besides the sizes.
WHOLES: dict[str, tuple[str, dict[str, Any]]] = {
    "deepseek_ocr2": ("deepseek_ocr2", {
        "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1, "moe_intermediate_size": 24,
        "mlp_layer_types": ["dense", "sparse"],
    }),
    "ernie4_5_vl_moe": ("ernie4_5_vl_moe", {
        "moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": [24, 24], "rope_parameters": _MROPE,
    }),
    "muse_glimmer": ("muse_glimmer", {**_HEADS, "output_multiplier": 0.5, "final_logit_softcapping": 4.0,
        "sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}),
    "glmga": ("glmga", {**_HEADS, "rope_parameters": _HALF_MROPE}),
    "exaone4_5": ("exaone4_5", {"model_type": "exaone4"}),
    "gemma3": ("gemma3", {"model_type": "gemma3_text", **_HEADS, "sliding_window": WINDOW}),
    "gemma4": ("gemma4", {**_GEMMA, "global_head_dim": 16}),
    "gemma4_unified": ("gemma4_unified", {**_GEMMA, "global_head_dim": 16}),
    "glm4v": ("glm4v", {**_HEADS, "rope_parameters": _HALF_MROPE}),
    "glm_ocr": ("glm_ocr", {**_HEADS, "rope_parameters": _HALF_MROPE}),
    "got_ocr2": ("got_ocr2", {"model_type": "qwen2"}),
    "granite_docling": ("granite_docling", {}),
    "hunyuan_vl": ("hunyuan_vl", {**_HEADS, "rope_parameters": _XDROPE}),
    "idefics3": ("idefics3", {"model_type": "llama"}),
    "internvl": ("internvl", {"model_type": "qwen2"}),
    "internvl-qwen3": ("internvl", {"model_type": "qwen3", **_HEADS}),
    "lfm2_vl": ("lfm2_vl", {"model_type": "lfm2", **_CONVOLUTIONS}),
    "lfm3_vl": ("lfm3_vl", {"model_type": "lfm3", **_CONVOLUTIONS}),
    "lighton_ocr": ("lighton_ocr", {"model_type": "qwen3", **_HEADS}),
    "llava": ("llava", {"model_type": "llama"}),
    "llava_next": ("llava_next", {"model_type": "mistral"}),
    "llava_onevision": ("llava_onevision", {"model_type": "qwen2"}),
    "minicpmv4_6": ("minicpmv4_6", {"model_type": "qwen3_5_text", **_DELTA}),
    "minicpmv4_7": ("minicpmv4_7", {"model_type": "qwen3_5_text", **_DELTA}),
    "mistral3": ("mistral3", {"model_type": "mistral", **_HEADS}),
    "mistral3-ministral3": ("mistral3", {"model_type": "ministral3", **_HEADS}),
    "ovis2": ("ovis2", {"model_type": "qwen2"}),
    "phi4_multimodal": ("phi4_multimodal", {}),
    "paddleocr_vl": ("paddleocr_vl", {**_HEADS, "rope_parameters": _MROPE}),
    "qwen2_5_vl": ("qwen2_5_vl", {"rope_parameters": _MROPE}),
    "qwen2_vl": ("qwen2_vl", {"rope_parameters": _MROPE}),
    "qwen3_5": ("qwen3_5", {**_DELTA, "rope_parameters": _PART_MROPE}),
    "qwen3_5_moe": ("qwen3_5_moe", {**_DELTA, **_EXPERTS, "rope_parameters": _PART_MROPE,
                                    "shared_expert_intermediate_size": 24}),
    "qwen3_vl": ("qwen3_vl", {**_HEADS, "rope_parameters": _MIXED_MROPE}),
    "qwen3_vl_moe": ("qwen3_vl_moe", {**_HEADS, **_EXPERTS, "rope_parameters": _MIXED_MROPE}),
    "smolvlm": ("smolvlm", {"model_type": "llama"}),
}  # fmt: skip


def build_whole(case: str, folder: Path, shard: str = "5GB", **fields: Any) -> Path:
    """Writes the checkpoint of a case to a folder of its own under `folder` and returns that. `fields`: of
    the whole's configuration."""
    config = whole_config(case, **fields)
    with torch.random.fork_rng(), quiet():
        torch.manual_seed(7)
        model = _class_of(config).from_config(config, dtype=torch.float32)
        spread(model)
        model.save_pretrained(folder / case, max_shard_size=shard)
    return folder / case


def whole_config(case: str, **fields: Any) -> PretrainedConfig:
    """Returns the configuration of a case, with small towers."""
    model_type, text = WHOLES[case]
    default = AutoConfig.for_model(model_type)
    towers = {
        name: _small(getattr(default, name))
        for name in ("vision_config", "audio_config")
        if isinstance(getattr(default, name, None), PretrainedConfig)
    }
    sizes = {**SIZES, **text}
    inner = {"text_config": sizes} if hasattr(default, "text_config") else sizes
    config: PretrainedConfig = AutoConfig.for_model(model_type, **inner, **towers, **fields)
    return config


def whole(folder: Path) -> PreTrainedModel:
    """The whole model in plain transformers with eager attention, float32."""
    with quiet():
        model: PreTrainedModel = _class_of(AutoConfig.from_pretrained(folder)).from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        )
    return model.eval()


def _class_of(config: PretrainedConfig) -> Any:
    nested = hasattr(config, "text_config")
    return AutoModelForImageTextToText if nested else AutoModelForCausalLM


def _small(tower: PretrainedConfig) -> dict[str, Any]:
    have = tower.to_dict()
    small: dict[str, Any] = {name: size for name, size in _TOWER.items() if name in have}
    for name, size in _IMAGE.items():
        if name in have:
            small[name] = [size, size] if isinstance(have[name], list) else size
    inner = {name: _small(part) for name, part in vars(tower).items() if isinstance(part, PretrainedConfig)}
    first = {name: [0] for name in _FIRST_LAYER if name in have}
    return {"model_type": have["model_type"], **small, **first, **inner}
