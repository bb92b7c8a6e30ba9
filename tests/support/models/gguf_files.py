"""GGUF files made on the fly: a tiny random model with a byte-level tokenizer and a chat template, in
llama.cpp's layout (its names, and a Llama's rotary dimensions interleaved)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from numpy.typing import NDArray
from ops.bench.models.gguf_file import describe, rotary_order
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.convert_slow_tokenizer import bytes_to_unicode

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] + ' ' + message['content'] }}<|im_end|>"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant {% endif %}"
)
TOKENS = [*bytes_to_unicode().values(), "th", "the", "<unk>", "<|im_start|>", "<|im_end|>"]
MERGES = ["t h", "th e"]
UNK, BOS, EOS = (len(TOKENS) - left for left in (3, 2, 1))
_OF_K = 256  # weights of a block of the types that end with K


def tiny_llama(seed: int = 0, *, size: int = 64, tied: bool = False) -> PreTrainedModel:
    return tiny_model("llama", seed, size=size, tied=tied)


@torch.no_grad()
def tiny_model(
    kind: str, seed: int = 0, *, size: int = 64, tied: bool = False, **fields: Any
) -> PreTrainedModel:
    """`kind`: llama | qwen2 | qwen3 | gemma3_text | lfm2. `fields`: of its configuration."""
    torch.manual_seed(seed)
    if kind == "lfm2":
        fields = {"layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False} | fields
    config = AutoConfig.for_model(
        kind,
        vocab_size=len(TOKENS),
        hidden_size=size,
        intermediate_size=size + size // 2 if size < _OF_K else size,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        bos_token_id=BOS,
        eos_token_id=EOS,
        initializer_range=2.4 / size**0.5,
        tie_word_embeddings=tied,
        head_dim=128 if kind == "qwen3" else size // 4,  # transformers reads none from a Qwen3's file
        **fields,
    )
    model = AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        if parameter.ndim == 1:  # biases are 0 and norms 1, which nobody would miss
            parameter.add_(torch.randn_like(parameter) / 4)
    return model.eval()


def _add_positions(writer: gguf.GGUFWriter, model: PreTrainedModel) -> None:
    """As llama.cpp's converter: Llama 3's scaling as a tensor, others as fields."""
    rope = model.config.rope_parameters.get("full_attention", model.config.rope_parameters)
    if rope["rope_type"] == "llama3":
        scaled = model.get_decoder().rotary_emb.inv_freq.numpy()
        plain = rope["rope_theta"] ** (-np.arange(len(scaled)) / len(scaled))
        writer.add_tensor("rope_freqs.weight", (plain / scaled).astype(np.float32))
    elif rope["rope_type"] != "default":
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
        if original := rope.get("original_max_position_embeddings"):
            writer.add_rope_scaling_orig_ctx_len(original)


def _add_tokenizer(writer: gguf.GGUFWriter) -> None:
    special = len(TOKENS) - 3
    normal, control = gguf.TokenType.NORMAL, gguf.TokenType.CONTROL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(TOKENS)
    writer.add_token_types([normal if index < special else control for index in range(len(TOKENS))])
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(EOS)
    writer.add_unk_token_id(UNK)
    writer.add_pad_token_id(EOS)
    writer.add_chat_template(CHAT_TEMPLATE)


def write_gguf(
    path: Path,
    model: PreTrainedModel,
    weights: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    **ends: int,
) -> Path:
    """`ends`: further tokens at the end of a turn (`eot`) or of a message (`eom`)."""
    config = model.config
    architecture = config.model_type.removesuffix("_text")
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("tiny")
    describe(writer, config)
    _add_positions(writer, model)
    _add_tokenizer(writer)
    for name, token in ends.items():
        getattr(writer, f"add_{name}_token_id")(token)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[architecture.upper()], config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        data = (rotary_order(name, tensor, config) if config.model_type == "llama" else tensor).numpy()
        if architecture == "gemma3" and name.endswith("norm.weight"):
            data = data + 1
        if convolution := name.endswith("conv.conv.weight"):
            data = data[:, 0]
        kind = weights if data.ndim > 1 and not convolution else gguf.GGMLQuantizationType.F32
        own = names.get_name(name, try_suffixes=(".weight", ".bias"))
        writer.add_tensor(own, packed(data, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def packed(data: NDArray[np.float32], kind: gguf.GGMLQuantizationType) -> NDArray[Any]:
    """Of the types that end with K, which gguf does not make, random blocks: any bytes are some weights."""
    if kind == gguf.GGMLQuantizationType.F32:
        return data
    if not kind.name.endswith("_K"):
        return gguf.quants.quantize(data, kind)
    weights, size = gguf.GGML_QUANT_SIZES[kind]
    random = np.random.default_rng(data.size)
    blocks = random.integers(0, 256, (data.size // weights, size), np.uint8)
    scale, codes = data.std(), {"Q4_K": 63 * 8, "Q5_K": 63 * 16, "Q6_K": 127 * 16}[kind.name]
    factors = np.array([scale / codes * 2] * 2, np.float16).view(np.uint8)
    where = slice(208, 210) if kind.name == "Q6_K" else slice(0, 4)
    blocks[:, where] = factors[: where.stop - where.start]
    return blocks.reshape(len(data), -1)
