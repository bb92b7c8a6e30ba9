"""The model types of transformers that this engine runs, runs the text half of, or leaves out, and why. Needs
no library.

A type runs when the tests have compared it with transformers' own generation, row by row; a text half when
they have compared its logits with the whole model's.
"""

from __future__ import annotations

from collections.abc import Iterator

PROVEN = frozenset((
    "afmoe", "apertus", "arcee", "axk1", "bamba", "beam", "biogpt", "bitnet", "cohere", "cohere2",
    "cohere2_moe", "cwm", "deepseek_v2", "deepseek_v3", "dots1", "ernie4_5", "ernie4_5_moe", "exaone4",
    "exaone_moe", "falcon_h1", "flex_olmo", "flint", "gemma", "gemma2", "gemma3_text", "gemma3n_text",
    "gemma4_text", "gemma4_unified_text", "glm", "glm4", "glm4_moe", "glm4_moe_lite", "gpt2",
    "gpt_bigcode", "gpt_neox", "gpt_oss", "granite", "granite_swa", "granitemoe", "granitemoe_swa",
    "granitemoehybrid", "granitemoeshared", "helium", "hunyuan_v1_dense", "hunyuan_v1_moe", "hy_v3",
    "hyperclovax", "internlm3", "iquestcoder", "jais2", "jetmoe", "kimi_linear", "kolibri1", "laguna",
    "lfm2", "lfm2_moe", "lfm3", "llama", "longcat_flash", "mellum", "mimo_v2_flash", "minicpm3",
    "minimax_m2", "ministral", "ministral3", "mistral", "mixtral", "nanochat", "nemotron", "nemotron_h",
    "olmo", "olmo2", "olmo3", "olmo_hybrid", "olmoe", "opt", "persimmon", "phi", "phi3", "phimoe",
    "qwen2", "qwen2_moe", "qwen3", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_moe", "qwen3_next",
    "seed_oss", "smollm3", "solar_open", "stablelm", "starcoder2", "vaultgemma", "youtu",
))  # fmt: skip

# Of these, types that keep a recurrent state beside keys and values: on the CPU.
RECURRENT = frozenset((
    "bamba", "falcon_h1", "granitemoehybrid", "kimi_linear", "lfm2", "lfm2_moe", "lfm3", "nemotron_h",
    "olmo_hybrid", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next",
))  # fmt: skip

# Multimodal types whose text half the tests have compared with the whole model's logits.
HALVES = frozenset((
    "deepseek_ocr2", "ernie4_5_vl_moe", "exaone4_5", "gemma3", "gemma3n", "gemma4", "gemma4_unified",
    "glm4v", "glm_ocr", "glmga", "got_ocr2", "granite_docling", "hunyuan_vl", "idefics3", "internvl",
    "internvl_chat", "lfm2_vl", "lfm3_vl", "lighton_ocr", "llava", "llava_next", "llava_onevision",
    "minicpmv4_6", "minicpmv4_7", "mistral3", "muse_glimmer", "ovis2", "paddleocr_vl", "phi4_multimodal",
    "qwen2_5_vl", "qwen2_vl", "qwen3_5", "qwen3_5_moe", "qwen3_vl", "qwen3_vl_moe", "smolvlm",
))  # fmt: skip

# Of these, types whose images the tests have compared with transformers' own generation: the axis of the
# pixels along which an image is cut into units, each encoded by itself; None: it is one.
IMAGE_UNITS: dict[str, int | None] = {
    "glm_ocr": None, "granite_docling": 1, "hunyuan_vl": None, "idefics3": 1, "internvl": 0,
    "lighton_ocr": None, "mistral3": None, "paddleocr_vl": None, "qwen2_5_vl": None, "qwen2_vl": None,
    "qwen3_vl": None, "smolvlm": 1,
}  # fmt: skip

# Of these, types that transformers does not know: the field of config.json with a text type that it knows.
FOREIGN = {"internvl_chat": "llm_config"}

# Of these, text types without a text model of their own: their body gets a head here.
HEADED = frozenset(("deepseek_ocr2_text", "ernie4_5_vl_moe_text", "muse_glimmer_text"))

_LEFT_OUT = {
    "writes blocks of text by diffusion": (
        "diffusion_gemma",
    ),
    "looks at images from inside its text layers (cross-attention)": (
        "mllama",
    ),
    "scales its logits otherwise than its text half's own class": (
        "aya_vision", "cohere2_vision",
    ),
    "keeps state beside keys and values (state-space or convolution layers)": (
        "bailing_hybrid", "falcon_mamba", "inkling_text", "jamba", "mamba", "mamba2", "recurrent_gemma",
        "rwkv", "xlstm", "zamba", "zamba2", "zaya",
    ),
    "uses linear attention, which keeps state beside keys and values": (
        "minimax",
    ),
    "computes attention in its own code, past transformers' attention interface": (
        "bloom", "codegen", "cpmant", "falcon", "gpt_neo", "gpt_neox_japanese", "gptj", "mpt",
        "openai-gpt", "reformer", "xglm", "xlm", "xlnet",
    ),
    "has attention modules that call the attention interface more than once": (
        "diffllama",
    ),
    "attends within chunks that its attention modules do not announce": (
        "llama4", "llama4_text",
    ),
    "selects or compresses the keys that it attends to": (
        "deepseek_v32", "deepseek_v4", "doge", "glm_moe_dsa",
    ),
}  # fmt: skip
_INSTEAD = {  # by the beginning of a type's name
    "deepseek": "deepseek_v3", "glm_moe_dsa": "glm4_moe", "llama4": "llama", "nemotron_h_": "nemotron_h",
}  # fmt: skip

REASONS = {model_type: reason for reason, model_types in _LEFT_OUT.items() for model_type in model_types}


def instead_of(model_type: str) -> str | None:
    """Returns a type that runs, of the same kind or size; None where none is known."""
    return next((near for start, near in _INSTEAD.items() if model_type.startswith(start)), None)


def table() -> Iterator[tuple[str, str, str]]:
    """Yields each type, how it runs, and why or where it does not; in the order of the names."""
    for model_type in sorted({*PROVEN, *HALVES, *REASONS}):
        if model_type in PROVEN:
            yield model_type, "as published", "on CPUs only so far" if model_type in RECURRENT else ""
        elif model_type in HALVES:
            yield model_type, "its text half", "and images" if model_type in IMAGE_UNITS else ""
        else:
            yield model_type, "left out", REASONS[model_type]
