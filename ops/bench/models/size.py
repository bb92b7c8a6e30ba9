"""The size of a checkpoint's model: counted on its modules without their weights, so that any architecture
works.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class ModelSize:
    """Per token of the batch or per step, as named. `windows`: tokens a layer looks back, None: all."""

    vocab_size: int
    token_weights: int  # multiplied with each token; of experts only the active ones
    head_weights: int  # the same for each sampled token
    weight_bytes: int  # read in a step: all but a separate embedding, of which a step reads some rows
    kv_token_bytes: int  # bytes x layers x KV heads x (size of a key + size of a value)
    pair_flops: int  # attention's per layer, for one token looking at one: 2 x heads x (key + value)
    windows: tuple[int | None, ...]  # of each layer with attention
    dtype: str = "bfloat16"  # of weights, keys and values

    def attended(self, start: int, end: int) -> int:
        """Pairs of tokens that attention computes for the positions [start, end), over all layers."""
        return sum(_pairs(end, window) - _pairs(start, window) for window in self.windows)


def size_of(folder: Path) -> ModelSize:
    """Of the checkpoint in a folder with config.json."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder, local_files_only=True).get_text_config()
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    embedding = model.get_input_embeddings().weight.numel()
    head = model.get_output_embeddings().weight.numel()
    tied = bool(config.tie_word_embeddings)
    everything = sum(parameter.numel() for parameter in model.parameters())
    inner = everything - embedding - (0 if tied or everything == embedding else head)
    experts = sum(p.numel() for name, p in model.named_parameters() if ".experts." in name)
    dtype: torch.dtype = config.dtype or torch.float32
    narrow = dtype == torch.float32 and _is_narrow(folder)
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    key_and_value = (getattr(config, "qk_head_dim", None) or head_dim) + (
        getattr(config, "v_head_dim", None) or head_dim
    )
    windows = _windows(config)
    return ModelSize(
        vocab_size=config.vocab_size,
        token_weights=inner - experts + int(experts * _active_share(config)),
        head_weights=head,
        weight_bytes=(inner + head) * (2 if narrow else dtype.itemsize),
        kv_token_bytes=dtype.itemsize * len(windows) * kv_heads * key_and_value,
        pair_flops=2 * heads * key_and_value,
        windows=windows,
        dtype=str(dtype).removeprefix("torch."),
    )


def _is_narrow(folder: Path) -> bool:
    """Whether float32 weights are exact in bfloat16: then nobody has to read more than that."""
    from safetensors import safe_open

    files = list(folder.glob("*.safetensors"))
    for file in files:
        with safe_open(file, "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - it is no mapping
                some = tensors.get_slice(name)
                if len(some.get_shape()) == 2 and not (some[:64].bfloat16() == some[:64]).all():
                    return False
    return bool(files)


def _active_share(config: Any) -> float:
    """The share of the experts that one token is sent to."""
    names = ("num_local_experts", "num_experts", "n_routed_experts")
    experts = next((getattr(config, name) for name in names if getattr(config, name, None)), 1)
    return float(getattr(config, "num_experts_per_tok", None) or experts) / experts


def _windows(config: Any) -> tuple[int | None, ...]:
    layers, window = config.num_hidden_layers, getattr(config, "sliding_window", None)
    types = (
        getattr(config, "layer_types", None)
        or [
            "sliding_attention"
            if window and getattr(config, "use_sliding_window", True)
            else "full_attention"
        ]
        * layers
    )
    recurrent = ("linear_attention", "conv")
    return tuple(window if kind == "sliding_attention" else None for kind in types if kind not in recurrent)


def _pairs(tokens: int, window: int | None) -> int:
    """Of the first `tokens` tokens of a row, each with itself and those before it within the window."""
    if window is None or tokens <= window:
        return tokens * (tokens + 1) // 2
    return window * (window + 1) // 2 + (tokens - window) * window
