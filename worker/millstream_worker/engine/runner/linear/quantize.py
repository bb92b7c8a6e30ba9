"""Has a loaded model's linear layers, and its embedding, computed with weights of 8 bits."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.pytorch_utils import Conv1D

from millstream_worker.engine.runner.linear.exchange import exchange, refuse_experts
from millstream_worker.engine.runner.linear.quantized_layers import QuantizedEmbedding, QuantizedLinear
from millstream_worker.engine.runner.native.library import Library
from millstream_worker.engine.runner.quantization.codes import Codes, OutOfRange, quantize

# Mean KL divergence of a head's answers from those of its own weights: what 8 bits cost a whole model, to
# which the head of SmolLM2-135M adds a thirtieth.
WORST_HEAD = 0.004
_STATES = 128  # on which it is measured
_OUTPUTS = 8192  # of a head, that are float32 at a time


@torch.no_grad()
def quantize_layers(
    model: nn.Module,
    library: Library | None,
    embedding: nn.Module | None = None,
    head: nn.Module | None = None,
) -> tuple[str, ...]:
    """Replace linear layers, one after the other, and free their weights. `embedding`: the one of tokens, of
    which there are codes once where its weight is a linear layer's, too. `head`: its answers are checked.
    Returns the weights that stay as they are, each with the reason. Raises ValueError for a model with
    experts, whose weights are no layers'."""
    refuse_experts(model, "int8")
    known = _of_vocabulary(embedding, head, library)
    kept: dict[str, None] = {}

    def replacement(name: str, layer: nn.Module) -> nn.Module | None:
        found = _replacement(layer, library, known)
        if isinstance(found, str):
            kept[f"{name}.weight: {found}"] = None
            return None
        return found

    exchange(model, replacement)
    return tuple(kept)


def _of_vocabulary(
    embedding: nn.Module | None, head: nn.Module | None, library: Library | None
) -> dict[Tensor, Codes | str]:
    """Codes of the weights of both, or why there are none."""
    known: dict[Tensor, Codes | str] = {}
    for layer in (embedding, head):
        if type(layer) in (nn.Embedding, nn.Linear) and layer is not None:
            weight = layer.get_parameter("weight")
            if weight not in known and weight.is_floating_point() and weight.device.type == "cpu":
                known[weight] = _quantized(weight)
            codes = known.get(weight)
            if layer is head and isinstance(codes, Codes):
                off = head_divergence(weight, codes, library)
                if not off <= WORST_HEAD:
                    known[weight] = f"a KL divergence of {off:.2g} in 8 bits, the bound is {WORST_HEAD}"
    return known


def _quantized(weight: Tensor) -> Codes | str:
    try:
        return quantize(weight)
    except OutOfRange as error:
        return str(error)


def head_divergence(weight: Tensor, codes: Codes, library: Library | None) -> float:
    """Mean KL divergence of the answers of a head in codes from those of its weight [vocabulary, inputs], for
    random hidden states of mean square 1, as norms leave them. NaN where logits are not finite."""
    states = torch.randn(_STATES, weight.shape[1], generator=torch.Generator().manual_seed(0))
    layer = QuantizedLinear(codes, None, torch.float32, library)
    total = 0.0
    for some in torch.split(states, 64):  # logits of 150,000 tokens are 40 MB
        own = [functional.linear(some, part.float()) for part in torch.split(weight, _OUTPUTS)]
        want, got = torch.cat(own, -1).log_softmax(-1), layer(some).log_softmax(-1)
        total += float((want.exp() * (want - got)).sum())
    return total / len(states)


def _replacement(
    layer: nn.Module, library: Library | None, known: dict[Tensor, Codes | str]
) -> QuantizedLinear | QuantizedEmbedding | str | None:
    """None for a layer that is not computed in codes; a text says why one that could be is not."""
    if type(layer) not in (nn.Linear, Conv1D, nn.Embedding):  # a subclass may compute something else
        return None
    parameter = layer.get_parameter("weight")
    codes = known.get(parameter)
    if type(layer) is nn.Embedding:
        return QuantizedEmbedding(codes, parameter.dtype) if isinstance(codes, Codes) else codes
    if not parameter.is_floating_point() or parameter.device.type != "cpu" or not parameter.numel():
        return None
    if codes is None:
        codes = _quantized(parameter.t() if type(layer) is Conv1D else parameter)
    if isinstance(codes, str):
        return codes
    return QuantizedLinear(codes, getattr(layer, "bias", None), parameter.dtype, library)
