"""A checkpoint as a GGUF file, in its own precision. Its tokenizer knows bytes alone: the benchmark speaks in
token ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

ARCHITECTURES = ("llama", "qwen3")  # whose tensors are renamed and nothing else, but for llama's rotary order


class NotConvertible(Exception):
    """A model type that is not written here; llama.cpp's own converter may do it."""


def gguf_file(folder: Path, path: Path) -> Path:
    """`path`, written if it is not there yet. Raises NotConvertible."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    if config.model_type not in ARCHITECTURES:
        raise NotConvertible(
            f"no GGUF file of a {config.model_type} is made here; make one with llama.cpp's converter and "
            "give --gguf PATH"
        )
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        _write(folder, config, part)
        part.replace(path)
    return path


def _write(folder: Path, config: Any, path: Path) -> None:
    import gguf
    import torch
    from transformers import AutoModelForCausalLM

    writer = gguf.GGUFWriter(path, config.model_type)
    describe(writer, config)
    _add_tokenizer(writer, config.vocab_size)
    names = gguf.get_tensor_name_map(
        gguf.MODEL_ARCH.LLAMA if config.model_type == "llama" else gguf.MODEL_ARCH.QWEN3,
        config.num_hidden_layers,
    )
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    tensors = {tensor.data_ptr(): (name, tensor) for name, tensor in reversed(model.state_dict().items())}
    for name, tensor in tensors.values():  # a tied head is the embedding
        if config.model_type == "llama":
            tensor = rotary_order(name, tensor, config)
        own = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if tensor.ndim > 1 and tensor.dtype == torch.bfloat16:
            data = tensor.contiguous().view(torch.uint8).numpy()
            writer.add_tensor(own, data, raw_dtype=gguf.GGMLQuantizationType.BF16)
        else:
            writer.add_tensor(own, tensor.float().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def describe(writer: Any, config: Any) -> None:
    """The model, but for its tokenizer."""
    head_dim = config.head_dim
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    kinds, kv_heads = getattr(config, "layer_types", None) or (), config.num_key_value_heads
    if "conv" in kinds:
        writer.add_head_count_kv([0 if kind == "conv" else kv_heads for kind in kinds])
        writer.add_shortconv_l_cache(config.conv_L_cache)
    else:
        writer.add_head_count_kv(kv_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(config.norm_eps if "conv" in kinds else config.rms_norm_eps)
    writer.add_rope_dimension_count(head_dim)
    rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    writer.add_rope_freq_base(rope["rope_theta"])
    if window := getattr(config, "sliding_window", None):
        writer.add_sliding_window(window)
    writer.add_vocab_size(config.vocab_size)


def _add_tokenizer(writer: Any, size: int) -> None:
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    known = list(bytes_to_unicode().values())
    known.append(2 * known[0])  # of the one merge that readers insist on
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([*known, *(f"<{number}>" for number in range(len(known), size))])
    writer.add_token_types([1] * size)
    writer.add_token_merges([f"{known[0]} {known[0]}"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def rotary_order(name: str, tensor: Any, config: Any) -> Any:
    """llama.cpp rotates neighbouring numbers of a llama's heads, transformers the halves."""
    heads = {"q_proj.weight": config.num_attention_heads, "k_proj.weight": config.num_key_value_heads}
    for ending, count in heads.items():
        if name.endswith(ending):
            halves = tensor.reshape(count, 2, config.head_dim // 2, -1)
            return halves.transpose(1, 2).reshape(tensor.shape)
    return tensor
