"""Reads the weights of a GGUF file by their names in transformers' model, quantised ones as they are."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFReader, ReaderTensor
from torch import Tensor
from transformers import AutoModelForCausalLM, PretrainedConfig

from millstream_worker.engine.runner.checkpoint.gguf_positions import set_positions
from millstream_worker.engine.runner.quantization.gguf_blocks import KINDS, unpack
from millstream_worker.engine.runner.quantization.packed import PackedWeights, named
from millstream_worker.engine.runner.quantization.weight_codes import WeightCodes

# Those whose weights are transformers' own, but for the order of Llama's queries and keys, and Gemma's norms.
_ARCHITECTURES = {
    "gemma3": gguf.MODEL_ARCH.GEMMA3,
    "llama": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "lfm2": gguf.MODEL_ARCH.LFM2,
}
_UNREAD = ("gemma4",)  # whose rotary bases transformers does not read
_FURTHER_ENDS = (gguf.Keys.Tokenizer.EOT_ID, gguf.Keys.Tokenizer.EOM_ID)
_ROTATED = ("attn_q.", "attn_k.")
_CONVOLUTION = "shortconv.conv."
_FLOATING = {  # GGUFReader gives bytes of what numpy does not have
    GGMLQuantizationType.F32: torch.float32,
    GGMLQuantizationType.F16: torch.float16,
    GGMLQuantizationType.BF16: torch.bfloat16,
}


class GGUFError(Exception):
    """The file cannot be read, or what is made of it cannot be kept. The message says why."""


class GGUFWeights:
    """A file's weights. Raises GGUFError, and what the reader raises for a file that is not what it says."""

    def __init__(self, file: Path) -> None:
        self._reader = GGUFReader(file)
        field = self._reader.get_field("general.architecture")
        self._architecture = str(field.contents()) if field else ""
        if self._architecture in _UNREAD:
            raise GGUFError(f"GGUF files of {self._architecture} are not read yet; use its safetensors")

    @property
    def quantized(self) -> bool:
        """True if the weights are quantised, and their architecture can be computed in their own bits."""
        experts = any(len(tensor.shape) > 2 for tensor in self._reader.tensors)
        kinds = {tensor.tensor_type for tensor in self._reader.tensors}
        return self._architecture in _ARCHITECTURES and not experts and not kinds <= _FLOATING.keys()

    @property
    def dtype(self) -> torch.dtype:
        """Returns the floating type that most of the weights have; bfloat16 where they are quantised, which
        is far coarser than bfloat16's rounding."""
        elements: Counter[GGMLQuantizationType] = Counter()
        for tensor in self._reader.tensors:
            elements[tensor.tensor_type] += int(tensor.n_elements)
        most = elements.most_common(1)[0][0]
        return _FLOATING.get(most, torch.bfloat16)

    @property
    def end_ids(self) -> list[int]:
        """Returns the ends of a text, a turn and a message that the file names, without repetition. A warning
        tells of a further end that is no token of the file.
        """
        tokens = self._reader.get_field(gguf.Keys.Tokenizer.LIST)
        count = 0 if tokens is None else len(tokens.data)
        ends = self._tokens_at(gguf.Keys.Tokenizer.EOS_ID)
        for key in _FURTHER_ENDS:
            for token in self._tokens_at(key):
                if token < count:
                    ends.append(token)
                else:
                    message = f"{key} {token} is none of the file's {count} tokens, and ends no answer"
                    warnings.warn(message, stacklevel=2)
        return list(dict.fromkeys(ends))

    def _tokens_at(self, key: str) -> list[int]:
        field = self._reader.get_field(key)
        return [] if field is None else [int(field.contents())]

    def set_positions(self, config: PretrainedConfig) -> None:
        """Completes the configuration that transformers read. Raises GGUFError for positions that are not
        computed."""
        try:
            set_positions(config, self._reader, self._architecture)
        except ValueError as error:
            raise GGUFError(str(error)) from error

    def packed(self, config: PretrainedConfig) -> PackedWeights:
        """Raises GGUFError for a type that is not computed, and for a file that lacks weights."""
        codes: dict[str, WeightCodes] = {}
        others: dict[str, Tensor] = {}
        types: Counter[str] = Counter()
        names = self._names(config)
        for tensor in self._reader.tensors:
            if tensor.name not in names:
                continue  # such as the frequencies of rotary positions
            name, data = names.pop(tensor.name), self._in_order(tensor, config)
            types[tensor.tensor_type.name] += int(tensor.n_elements) if data.ndim == 2 else 0
            if tensor.tensor_type in KINDS:
                codes[name] = unpack(data, tensor.tensor_type)
            else:
                others[name] = _as_float(data, tensor)
        if config.tie_word_embeddings:
            names.pop("output.weight", None)
        check_whole(names.values())
        return PackedWeights(codes, others, named(+types))

    def _names(self, config: PretrainedConfig) -> dict[str, str]:
        """Returns the model's names of weights by the file's."""
        with torch.device("meta"):
            parameters = list(AutoModelForCausalLM.from_config(config).state_dict())
        layers = config.num_hidden_layers
        known = gguf.get_tensor_name_map(_ARCHITECTURES[self._architecture], layers)
        names = {known.get_name(name, (".weight", ".bias")): name for name in parameters}
        return {own: name for own, name in names.items() if own is not None}

    def _in_order(self, tensor: ReaderTensor, config: PretrainedConfig) -> np.ndarray[Any, Any]:
        """Returns [outputs, ...], with the halves of heads that are rotated together one after the other:
        llama.cpp has Llama's side by side. Norms of Gemma are less by one than the file's; convolutions have
        one input a channel, which the file leaves out."""
        data: np.ndarray[Any, Any] = tensor.data
        if _CONVOLUTION in tensor.name:
            return data[:, None]
        if self._architecture == "gemma3" and tensor.name.endswith("norm.weight"):
            return data - 1
        if self._architecture != "llama" or not any(part in tensor.name for part in _ROTATED):
            return data
        heads = config.num_attention_heads if "attn_q." in tensor.name else config.num_key_value_heads
        halves = data.reshape(heads, -1, 2, *data.shape[1:])
        return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(data.shape)


def check_whole(missing: Iterable[str]) -> None:
    """Raises GGUFError if weights are missing: transformers would go on with random numbers."""
    names = sorted(missing)
    if names:
        raise GGUFError(
            f"it lacks {len(names)} of the model's weights, the first is {names[0]}; "
            "if the model was split into several GGUF files, merge them first (llama-gguf-split --merge)"
        )


def _as_float(data: np.ndarray[Any, Any], tensor: ReaderTensor) -> Tensor:
    dtype = _FLOATING.get(tensor.tensor_type)
    if dtype is None:
        raise GGUFError(
            f"its tensor {tensor.name} has the type {tensor.tensor_type.name}, which is not computed; types "
            f"that are: {', '.join(kind.name for kind in (*KINDS, *_FLOATING))}"
        )
    return torch.from_numpy(np.array(data)).view(dtype)
