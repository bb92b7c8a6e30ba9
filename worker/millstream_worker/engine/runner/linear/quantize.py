"""Has a loaded model's linear layers, and its embedding, computed with weights of 8 bits."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from millstream_worker.engine.runner.codes.codes import Codes, quantize
from millstream_worker.engine.runner.linear.quantized_layers import QuantizedEmbedding, QuantizedLinear
from millstream_worker.engine.runner.native.library import Library


@torch.no_grad()
def quantize_layers(model: nn.Module, library: Library | None, embedding: nn.Module | None = None) -> None:
    """Replace linear layers, one after the other, and free their weights. `embedding`: the one of tokens, of
    which there are codes once where its weight is a linear layer's, too. Raises ValueError for a model with
    experts, whose weights are no layers'."""
    for name, parameter in model.named_parameters():
        if parameter.ndim > 2:
            raise ValueError(
                f"weights 'int8': {name} {list(parameter.shape)} holds experts, which stay as they are in a "
                "checkpoint; use weights 'auto'"
            )
    tied: dict[Tensor, Codes] = {}
    if type(embedding) is nn.Embedding and embedding.weight.is_floating_point():
        tied[embedding.weight] = quantize(embedding.weight)
    replaced: dict[nn.Module, nn.Module] = {}
    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            found = replaced.get(layer) or _replacement(layer, library, tied)
            if found is not None:
                replaced[layer] = found.train(layer.training)
                setattr(parent, name, found)
                layer._parameters.pop("weight", None)  # the layer itself lives on in `replaced`


def _replacement(
    layer: nn.Module, library: Library | None, tied: dict[Tensor, Codes]
) -> QuantizedLinear | QuantizedEmbedding | None:
    if type(layer) not in (nn.Linear, Conv1D, nn.Embedding):  # a subclass may compute something else
        return None
    parameter = layer.get_parameter("weight")
    codes = tied.get(parameter)
    if type(layer) is nn.Embedding:
        return None if codes is None else QuantizedEmbedding(codes, parameter.dtype)
    if not parameter.is_floating_point() or parameter.device.type != "cpu" or not parameter.numel():
        return None
    if codes is None:
        codes = quantize(parameter.t() if type(layer) is Conv1D else parameter)
    return QuantizedLinear(codes, getattr(layer, "bias", None), parameter.dtype, library)
