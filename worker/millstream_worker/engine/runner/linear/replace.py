"""Decides which linear layer of a model becomes what: a `QuantizedLinear`, or on a GPU a `Float8Linear`,
where weights of 8 bits are asked for; a `PanelLinear` where the compiled library can multiply its weight;
else it stays what it is. The weight's type and shape and the device decide, layer by layer.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from millstream_worker.engine.runner.linear.exchange import exchange
from millstream_worker.engine.runner.linear.float8_layers import Float8Linear, quantize_layers_to_float8
from millstream_worker.engine.runner.linear.panel import PanelLinear
from millstream_worker.engine.runner.linear.quantize import quantize_layers
from millstream_worker.engine.runner.linear.quantized_layers import QuantizedEmbedding, QuantizedLinear
from millstream_worker.engine.runner.native.custom_ops import SURROUNDINGS
from millstream_worker.engine.runner.native.library import PER, Library, Panels


def replace_linear_layers(
    model: nn.Module,
    library: Library | None,
    weights: str = "auto",
    embedding: nn.Module | None = None,
    head: nn.Module | None = None,
    device: torch.device | str = "cpu",
) -> tuple[str, ...]:
    """Replace the linear layers of a model that `library` multiplies, one after the other, and free their
    weights unless others (a tied embedding) hold them too. Returns lines for the log: a summary, and what is
    not as it was asked for. `weights`: auto; int8, with which the `embedding` of tokens is replaced as well,
    and answers of the `head` are checked; or fp8, computed on `device`. Raises ValueError."""
    kept: tuple[str, ...] = ()
    if weights == "int8":
        kept = quantize_layers(model, library, embedding, head)
    elif weights == "fp8":
        kept = quantize_layers_to_float8(model, device, head)
    SURROUNDINGS.library = library
    if library is not None and library.panels is not None:
        SURROUNDINGS.panels = panels = library.panels
        exchange(model, lambda _, layer: _replacement(layer, panels))
    if any(isinstance(module, PanelLinear | QuantizedLinear) for module in model.modules()):
        _let_go_of_files(model)
    return _summary(model, library), *(f"not in 8 bits: {one}" for one in kept)


def _replacement(layer: nn.Module, library: Panels) -> PanelLinear | None:
    if type(layer) not in (nn.Linear, Conv1D):  # a subclass may compute something else
        return None
    parameter, bias = layer.get_parameter("weight"), getattr(layer, "bias", None)
    weight = parameter.t() if type(layer) is Conv1D else parameter
    per = PER.get(weight.dtype)
    if weight.device.type != "cpu" or not per or not weight.numel() or weight.shape[1] % per:
        return None
    return PanelLinear(weight.contiguous(), bias, library)


def _let_go_of_files(model: nn.Module) -> None:
    """Weights are read by mapping their files, and one left that is still in its file keeps all of it mapped:
    the panels would be there twice."""
    laid_out = {module.panels for module in model.modules() if isinstance(module, PanelLinear)}
    for parameter in model.parameters():
        if parameter not in laid_out:
            parameter.data = parameter.data.clone()


def weight_bytes(model: nn.Module) -> int:
    """Returns the bytes of all parameters, and of codes with their scales."""
    tensors: dict[int, Tensor] = {id(one): one for one in model.parameters()}
    for module in model.modules():
        if isinstance(module, QuantizedLinear | QuantizedEmbedding | Float8Linear):
            tensors |= {id(one): one for one in module.buffers()}
    return sum(tensor.nbytes for tensor in tensors.values())


def weight_count(model: nn.Module) -> int:
    """Returns the number of weights, of those that are tied once."""
    counts = {id(one): one.numel() for one in model.parameters()}
    for module in model.modules():
        if isinstance(module, QuantizedLinear | QuantizedEmbedding | Float8Linear):
            counts[id(module.codes)] = module.weight_count
    return sum(counts.values())


def _summary(model: nn.Module, library: Library | None) -> str:
    modules = list(model.modules())
    native = [module for module in modules if isinstance(module, PanelLinear)]
    quantized = [module for module in modules if isinstance(module, QuantizedLinear)]
    float8 = sum(isinstance(module, Float8Linear) for module in modules)
    others = sum(isinstance(module, nn.Linear | Conv1D) for module in modules)
    counts = []
    if quantized:
        bits = "/".join(sorted({f"int{layer.quantized.bits}" for layer in quantized}))
        how = "" if library is not None and library.multiply_codes else " in float32, without native code"
        counts.append(f"{len(quantized)} {bits}{how}")
    if float8:
        counts.append(f"{float8} fp8")
    if native and library is not None:
        how = f" (bfloat16 {library.bfloat16_products})" if native[0].dtype == torch.bfloat16 else ""
        counts.append(f"{len(native)} native{how}")
    if others or not counts:
        counts.append(f"{others} torch")
    return f"linear layers: {', '.join(counts)}"
