"""GGUF files made on the fly: a tiny random Llama with a byte-level tokenizer and a chat template, in
llama.cpp's layout (its names, and rotary dimensions interleaved)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from numpy.typing import NDArray
from transformers import LlamaConfig, LlamaForCausalLM
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
HEADS, KV_HEADS = 4, 2
_OF_K = 256  # weights of a block of the types that end with K


def tiny_llama(seed: int = 0, *, size: int = 64, tied: bool = False) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(TOKENS),
        hidden_size=size,
        intermediate_size=size + size // 2 if size < _OF_K else size,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        max_position_embeddings=256,
        bos_token_id=BOS,
        eos_token_id=EOS,
        initializer_range=2.4 / size**0.5,
        tie_word_embeddings=tied,
    )
    return LlamaForCausalLM(config).eval()


def write_gguf(
    path: Path, model: LlamaForCausalLM, weights: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32
) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    config = model.config
    writer.add_name("tiny")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    _add_tokenizer(writer)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        data, kind = _laid_out(name, tensor.numpy(), weights)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


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


def _laid_out(
    name: str, data: NDArray[np.float32], weights: gguf.GGMLQuantizationType
) -> tuple[NDArray[np.generic], gguf.GGMLQuantizationType]:
    if ".q_proj." in name or ".k_proj." in name:
        heads = HEADS if ".q_proj." in name else KV_HEADS
        data = data.reshape(heads, 2, -1, data.shape[1]).swapaxes(1, 2).reshape(data.shape)
    kind = weights if data.ndim > 1 else gguf.GGMLQuantizationType.F32
    return packed(data, kind), kind


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
