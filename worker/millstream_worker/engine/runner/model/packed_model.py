"""Builds a model from a packed checkpoint: its linear layers and its embedding compute with the codes as they
are, or with dequantised weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from accelerate import init_empty_weights
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from millstream_worker.engine.runner.checkpoint.source_weights import weight_files
from millstream_worker.engine.runner.linear.quantized_layers import QuantizedEmbedding, QuantizedLinear
from millstream_worker.engine.runner.model.weights import check_memory
from millstream_worker.engine.runner.model_config.support import UnsupportedModel
from millstream_worker.engine.runner.native.library import Library
from millstream_worker.engine.runner.quantization.codes import Codes, in_panels
from millstream_worker.engine.runner.quantization.packed import PackedWeights, read_packed

_HEAD = "lm_head.weight"


@torch.no_grad()
def load_packed(
    folder: str,
    config: PretrainedConfig,
    dtype: torch.dtype,
    device: torch.device,
    attention: str,
    mark: Callable[[], None],
    *,
    as_codes: bool,
    library: Library | None,
) -> tuple[PreTrainedModel, str]:
    """Returns the model in evaluation mode on the device, and its weights' format. Raises
    `UnsupportedModel` where weights are missing or do not fit, or are more than the free memory."""
    with init_empty_weights(include_buffers=False):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=attention)
    kept = sum(file.stat().st_size for file in weight_files(Path(folder)))
    needed = kept if as_codes else model.num_parameters() * dtype.itemsize
    check_memory(needed, "its own bits" if as_codes else str(dtype).removeprefix("torch."), device)
    weights = read_packed(Path(folder))
    plain = [*weights.codes] if not as_codes else _put_codes(model, weights, dtype, library, mark)
    state: dict[str, Tensor] = {name: tensor.to(dtype) for name, tensor in weights.others.items()}
    for name in plain:
        mark()
        state[name] = weights.codes[name].dequantized(dtype, device)
    model.load_state_dict(state, strict=False, assign=True)
    if not isinstance(model.get_output_embeddings(), QuantizedLinear):
        model.tie_weights()
    _check(model, folder)
    model.requires_grad_(False)
    return model.to(device).eval(), weights.types if as_codes else str(dtype).removeprefix("torch.")


def _put_codes(
    model: PreTrainedModel,
    weights: PackedWeights,
    dtype: torch.dtype,
    library: Library | None,
    mark: Callable[[], None],
) -> list[str]:
    """Puts codes in place of the modules that have them; a head that is tied gets the embedding's. Returns
    the names of those left: an embedding of a kind that computes more than looking up."""
    left: list[str] = []
    embedding = model.get_input_embeddings()
    tied = model.config.tie_word_embeddings
    for name, weight in weights.codes.items():
        mark()
        place, codes = name.removesuffix(".weight"), in_panels(weight)
        module = model.get_submodule(place)
        if module is embedding and type(module) is not nn.Embedding:
            left.append(name)
        else:
            model.set_submodule(place, _quantized(module, codes, dtype, library, name))
        if tied and module is embedding:
            head = model.get_submodule(_HEAD.removesuffix(".weight"))
            model.set_output_embeddings(_quantized(head, codes, dtype, library, _HEAD))
    return left


def _quantized(
    module: nn.Module, codes: Codes, dtype: torch.dtype, library: Library | None, name: str
) -> nn.Module:
    wanted = list(module.get_parameter("weight").shape)
    given = [codes.outputs, codes.inputs]
    if wanted != given:
        raise UnsupportedModel(f"{name} is {given} instead of {wanted}")
    if type(module) is nn.Embedding:
        return QuantizedEmbedding(codes, dtype)
    if type(module) is nn.Linear:
        return QuantizedLinear(codes, module.bias, dtype, library)
    raise UnsupportedModel(f"{name} belongs to a {type(module).__name__}, which is not computed in codes")


def _check(model: PreTrainedModel, folder: str) -> None:
    missing = [name for name, tensor in model.state_dict().items() if tensor.device.type == "meta"]
    if missing:
        raise UnsupportedModel(f"{folder} lacks {len(missing)} weights, the first is {missing[0]}")
