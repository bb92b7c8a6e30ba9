"""Computes `nn.Linear` with weights in FP8 (E4M3) on a GPU, quantised when a model is loaded: a scale for
each output. Rows are quantised, too, each with a scale of its own: a row gets the same whoever shares its
step.

Rows are quantised in plain torch: its compiler makes one kernel of that and of the norm or the activation
before it. The product is an operation of our own, since Dynamo does not trace torch's.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import ScalingType, scaled_mm
from transformers.pytorch_utils import Conv1D

from millstream_worker.engine.runner.linear.exchange import exchange, refuse_experts
from millstream_worker.engine.runner.native.custom_ops import define

FORMAT = torch.float8_e4m3fn
_LARGEST = 448.0  # of the format
_LEAST_SCALE = 1e-12  # of a row of zeros
_FEATURES = 16  # both sides of a product are multiples of it


class Float8Linear(nn.Module):
    """A linear layer: it maps rows [..., in_features] in bfloat16 to [..., out_features]. Its codes are
    buffers: a model's own type is that of its parameters."""

    codes: Tensor  # [out_features, in_features]
    scales: Tensor  # [1, out_features] float32

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        codes, scales = quantized(weight.contiguous())
        self.register_buffer("codes", codes)
        self.register_buffer("scales", scales.t().contiguous())
        self.bias = bias

    @property
    def weight_count(self) -> int:
        return self.codes.numel()

    @property
    def weight(self) -> Tensor:
        """Returns a dequantised copy, for model code that does more with a layer than to call it."""
        return (self.codes.float() * self.scales.t()).bfloat16()

    def forward(self, rows: Tensor) -> Tensor:
        codes, scales = quantized(rows.reshape(-1, self.in_features))
        answer: Tensor = torch.ops.millstream.float8_product.default(codes, scales, self.codes, self.scales)
        if self.bias is not None:
            answer = answer + self.bias
        return answer.reshape(*rows.shape[:-1], self.out_features)


def quantized(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Returns codes [N, in] in FP8, and the scale of each row, [N, 1] float32. A row that is not finite has
    scales or codes that are not."""
    scales = (rows.abs().amax(-1, keepdim=True).float() / _LARGEST).clamp(min=_LEAST_SCALE)
    return (rows.float() / scales).to(FORMAT), scales


@torch.no_grad()
def quantize_layers_to_float8(
    model: nn.Module, device: torch.device | str, head: nn.Module | None = None
) -> tuple[str, ...]:
    """Replace linear layers but the `head`, one after the other: each is quantised on the device, so that a
    model that fits it only in 8 bits may be on the CPU. Returns the weights that stay as they are, each with
    the reason. Raises ValueError for a model with experts."""
    refuse_experts(model, "fp8")
    kept = []

    def replacement(name: str, layer: nn.Module) -> Float8Linear | None:
        if type(layer) not in (nn.Linear, Conv1D) or layer is head:  # a subclass may compute something else
            return None
        parameter, bias = layer.get_parameter("weight"), getattr(layer, "bias", None)
        weight = parameter.t() if type(layer) is Conv1D else parameter
        if any(size % _FEATURES for size in weight.shape):
            kept.append(f"{name}.weight: {list(weight.shape)} is not divisible by {_FEATURES}")
            return None
        return Float8Linear(weight.to(device), bias)

    exchange(model, replacement)
    return tuple(kept)


def _product(rows: Tensor, row_scales: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
    rows, by_row = rows.contiguous(), ScalingType.RowWise
    answer: Tensor = scaled_mm(
        rows, weight.t(), row_scales, by_row, scales, by_row, output_dtype=torch.bfloat16, use_fast_accum=True
    )
    return answer


define(
    "float8_product(Tensor rows, Tensor row_scales, Tensor weight, Tensor scales) -> Tensor",
    _product,
    lambda rows, row_scales, weight, scales: rows.new_empty(
        rows.shape[0], weight.shape[0], dtype=torch.bfloat16
    ),
)
