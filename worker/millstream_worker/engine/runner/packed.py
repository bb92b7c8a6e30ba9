"""Linear layers whose weights lie in memory as the CPU's matrix kernels read them: `pack` chooses whether
those are our library's (`native.linear`) or oneDNN's, whose layers are here.

Torch's own linear layer has its kernel rearrange the weight in each call, or read it against the grain. With
the weight packed once, products of 32 rows in the layers of a 135M model took 0.75 to 0.9 of the time on one
EPYC core, in bfloat16 and in float32, and one row of the 32,000 logits of a 14M model took a fifth. Weights
packed for one row were slower with more of them in float32; those packed for 32 and for 512 rows were level.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from millstream_worker.engine.runner.custom_ops import define
from millstream_worker.engine.runner.native import linear
from millstream_worker.engine.runner.native.library import Library
from millstream_worker.engine.runner.precision import has_amx

_ROWS = 32  # that weights are packed for; what it is does not limit the rows of a call


class PackedLinear(nn.Module):
    """What `nn.Linear` computes, for inference on the CPU: [..., in_features] to [..., out_features]."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        """`weight` [out_features, in_features] is copied, `bias` [out_features] kept."""
        super().__init__()
        self.out_features, self.in_features = weight.shape
        packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), _ROWS)
        self.packed = nn.Parameter(packed, requires_grad=False)
        self.bias = bias

    @property
    def weight(self) -> torch.Tensor:
        """An unpacked copy, for model code that does more with a layer than to call it."""
        return self.packed.to_dense()

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        if torch.compiler.is_compiling():
            # The compiler takes oneDNN's own operation with constant weights only, layer by layer.
            answer: torch.Tensor = torch.ops.millstream.linear.default(rows, self.packed, self.bias)
            return answer
        return multiply(rows, self.packed, self.bias)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}"


def pack(model: nn.Module, library: Library | None = None) -> int:
    """Replace the linear layers of a model on the CPU, one after the other, and free their weights unless
    others (a tied embedding) hold them too. They are multiplied by `library`, or what that cannot by oneDNN.
    Answers how many; 0 where neither can: then nothing is changed.
    """
    if library is not None:
        linear.use(library)
    packed: dict[nn.Module, nn.Module] = {}
    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            found = packed.get(layer) or _packed(layer, library)
            if found is not None:
                packed[layer] = found
                setattr(parent, name, found)
    if packed:
        _let_go_of_files(model)
    return len(packed)


def multiply(rows: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """rows [..., in] with a packed weight [out, in]: [..., out]."""
    answer: torch.Tensor = torch.ops.mkldnn._linear_pointwise.default(rows, packed, bias, "none", [], "")
    return answer


def _packed(layer: nn.Module, library: Library | None) -> nn.Module | None:
    if type(layer) not in (nn.Linear, Conv1D):  # a subclass may compute something else
        return None
    weight, bias = layer.get_parameter("weight"), getattr(layer, "bias", None)
    kind = _kind(weight.t() if type(layer) is Conv1D else weight, library)
    if kind is None:
        return None
    replacement = kind(weight.t().contiguous() if type(layer) is Conv1D else weight, bias)
    replacement.train(layer.training)
    del layer.weight  # the layer itself may live on in our list of those done
    return replacement


def _kind(weight: torch.Tensor, library: Library | None) -> Callable[..., nn.Module] | None:
    """What computes a layer of this weight [out, in] the fastest here."""
    if weight.device.type != "cpu" or not weight.numel():
        return None
    by_tiles = weight.dtype == torch.bfloat16 and has_amx()  # oneDNN's, and later the compiler's
    if library is not None and linear.fits(weight, library) and not by_tiles:
        return linear.PanelLinear
    return PackedLinear if _can_pack(weight.dtype) else None


def _let_go_of_files(model: nn.Module) -> None:
    """Weights are read by mapping their files, and one left that is still in its file keeps all of it mapped:
    the packed ones would be there twice."""
    laid_out = {module.panels for module in model.modules() if isinstance(module, linear.PanelLinear)}
    for parameter in model.parameters():
        if not parameter.is_mkldnn and parameter not in laid_out:
            parameter.data = parameter.data.clone()


@functools.cache
def _can_pack(dtype: torch.dtype) -> bool:
    """Whether this torch, on this processor, multiplies packed weights of the type, and rightly."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    weight, rows = torch.eye(64, 48, dtype=dtype).roll(5, 0), torch.arange(96.0).reshape(2, 48).to(dtype)
    try:
        layer = PackedLinear(weight, None)
        return torch.equal(multiply(rows, layer.packed, None), rows @ weight.t())
    except (RuntimeError, AttributeError):  # no such operation; or none for this processor
        return False


def _shaped(rows: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return rows.new_empty(*rows.shape[:-1], packed.shape[0])


define(
    "linear(Tensor rows, Tensor packed, Tensor? bias) -> Tensor",
    multiply,
    _shaped,
    ("CPU", "MkldnnCPU"),  # the type of the packed weight decides
)
