"""Computes `nn.Linear` and `nn.Embedding` of weights that are `Codes`, for inference on the CPU.

Rows are quantised, too: in groups of 32, each with a scale of its own. So products are of whole numbers,
which a processor makes more of, and which add up to the same in any order: a row gets the same whoever
shares its step. Without the compiled library the same numbers are multiplied as float32.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from millstream_worker.engine.runner.native import intercept
from millstream_worker.engine.runner.native.custom_ops import SURROUNDINGS, define
from millstream_worker.engine.runner.native.library import Library
from millstream_worker.engine.runner.quantization.codes import PANEL, Codes, join
from millstream_worker.engine.runner.quantization.weight_codes import GROUP

_AT_ONCE = 2**20  # weights that are dequantised at a time


@contextlib.contextmanager
def without_rounding() -> Iterator[None]:
    """Multiplies rows as they are, slowly. To compare two ways of computing a model: a number that lies
    between two codes goes either way, which in 30 layers of a trained model changed logits by 15 %."""
    SURROUNDINGS.exactly = True
    try:
        yield
    finally:
        SURROUNDINGS.exactly = False


class _Operands(NamedTuple):
    """The operands of a product. They are in the order of the operation's schema."""

    rows: Tensor  # [..., in]
    codes: Tensor
    scales: Tensor
    offsets: Tensor | None
    bias: Tensor | None
    out_features: int


class _Quantized(nn.Module):
    """A module's codes. They are buffers: a model's own type is that of its parameters."""

    codes: Tensor
    scales: Tensor
    offsets: Tensor | None

    def __init__(self, weight: Codes, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self._outputs, self._inputs = weight.outputs, weight.inputs
        self.register_buffer("codes", weight.codes)
        self.register_buffer("scales", weight.scales)
        self.register_buffer("offsets", weight.offsets)

    @property
    def quantized(self) -> Codes:
        return Codes(self.codes, self.scales, self.offsets, self._outputs, self._inputs)

    @property
    def weight_count(self) -> int:
        return self._outputs * self._inputs

    @property
    def weight(self) -> Tensor:
        """Returns a dequantised copy, for model code that does more with a layer than to call it."""
        return self.quantized.dequantized(self.dtype)


class QuantizedLinear(_Quantized):
    """A linear layer: it maps rows of `dtype` [..., in_features] to [..., out_features]."""

    def __init__(
        self, weight: Codes, bias: Tensor | None, dtype: torch.dtype, library: Library | None = None
    ) -> None:
        super().__init__(weight, dtype)
        self.out_features, self.in_features = weight.outputs, weight.inputs
        self.bias = bias
        self._library = library

    def forward(self, rows: Tensor) -> Tensor:
        if rows.dtype != self.dtype:
            raise RuntimeError(f"rows are {rows.dtype}, and their layer {self.dtype}")
        if rows.shape[-1] != self.in_features:
            raise RuntimeError(
                f"rows have {rows.shape[-1]} features, their weight [{self.out_features}, {self.in_features}]"
            )
        operands = _Operands(rows, self.codes, self.scales, self.offsets, self.bias, self.out_features)
        if torch.compiler.is_compiling():
            answer: Tensor = torch.ops.millstream.quantized_linear.default(*operands)
            return answer
        return _multiply(self._library, operands)


def join_layers(layers: Sequence[QuantizedLinear]) -> QuantizedLinear:
    """Returns one layer that computes what these do, one after the other. Their codes are of one kind."""
    first = layers[0]
    biases = [layer.bias for layer in layers if layer.bias is not None]
    weight = join([layer.quantized for layer in layers])
    return QuantizedLinear(weight, torch.cat(biases) if biases else None, first.dtype, first._library)


class QuantizedEmbedding(_Quantized):
    """An embedding: it dequantises rows of a weight [num_embeddings, embedding_dim] by their numbers."""

    def __init__(self, weight: Codes, dtype: torch.dtype) -> None:
        super().__init__(weight, dtype)
        self.num_embeddings, self.embedding_dim = weight.outputs, weight.inputs

    def forward(self, tokens: Tensor) -> Tensor:
        return self.quantized.rows(tokens, self.dtype)


def _multiply(library: Library | None, operands: _Operands) -> Tensor:
    """Returns the product [..., out]."""
    rows, codes, scales, offsets, bias, out_features = operands
    rows = rows.contiguous()
    *sizes, in_features = rows.shape
    weight = Codes(codes, scales, offsets, out_features, in_features)
    if SURROUNDINGS.exactly:
        return _multiply_plainly(rows.float(), weight, bias).to(rows.dtype)
    if library is None or rows.dtype not in library.multiply_codes:
        return _multiply_plainly(rounded_rows(rows), weight, bias).to(rows.dtype)
    answer = intercept.empty(rows, *sizes, out_features)
    intercept.call(
        library.multiply_codes[rows.dtype],
        (rows, codes, scales, offsets, bias, answer),
        rows.numel() // in_features,
        in_features,
        out_features,
        weight.bits,
        weight.group,
        torch.get_num_threads(),
    )
    return answer


def _multiply_plainly(rows: Tensor, weight: Codes, bias: Tensor | None) -> Tensor:
    """Returns the product of the rows as they are given, in float32."""
    some = max(1, _AT_ONCE // (PANEL * weight.inputs))
    parts = [
        functional.linear(rows, weight.panels(first, first + some).dequantized())
        for first in range(0, len(weight.codes), some)
    ]
    answer = torch.cat(parts, -1)
    return answer if bias is None else answer + bias.float()


def rounded_rows(rows: Tensor) -> Tensor:
    """Returns float32: what is left of rows [..., in] as codes of 8 bits with one scale for 32 of them."""
    size = rows.shape[-1]
    padded = functional.pad(rows.float(), (0, -size % GROUP))
    groups = padded.reshape(*rows.shape[:-1], padded.shape[-1] // GROUP, GROUP)
    most = groups.abs().amax(-1, keepdim=True)
    # Of a code. Torch divides by a tensor, and multiplies by the inverse of a number.
    largest = torch.tensor(127.0)
    codes = torch.where(most == 0, 0, groups * (largest / most)).round()
    rounded: Tensor = (codes * (most / largest)).flatten(-2)[..., :size]
    return rounded


def _compiled(*operands: Any) -> Tensor:
    return _multiply(SURROUNDINGS.library, _Operands(*operands))


def _shaped(*operands: Any) -> Tensor:
    given = _Operands(*operands)
    return given.rows.new_empty(*given.rows.shape[:-1], given.out_features)


define(
    "quantized_linear(Tensor rows, Tensor codes, Tensor scales, Tensor? offsets, Tensor? bias, "
    "int out_features) -> Tensor",
    _compiled,
    _shaped,
)
