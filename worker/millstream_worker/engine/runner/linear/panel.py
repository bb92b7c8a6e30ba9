"""Multiplies by linear layers whose weights lie in panels, with the compiled library.

A step of few rows waits for nothing but the weights. torch's (oneDNN's) products read them at 14 to 18 GB/s
on two EPYC cores with AVX-512, these at 24 to 29: 0.55 to 0.7 of its time with one to four rows, 0.8 to
0.95 with 32, as much with 512 and 2,048. On a Xeon with AVX-512 and without AMX, where bfloat16 is widened
to be multiplied as float32, 0.61 to 0.75 with any number of rows. With AMX see native/src/panel_tiles.h.
Measure with `python -m ops.bench layers`. What a row gets does not depend on who shares its step.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from millstream_worker.engine.runner.native import intercept
from millstream_worker.engine.runner.native.custom_ops import SURROUNDINGS, define
from millstream_worker.engine.runner.native.library import PER, Panels

_COMPARED = 1024  # rows of a weight at a time: it is there once, and may be large


class PanelLinear(nn.Module):
    """A linear layer for inference on the CPU: it maps [..., in_features] to [..., out_features].

    Weights of float32 that all are numbers of bfloat16, as those of most checkpoints are, lie there as such:
    the sums stay what they were, and half the memory is read.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, library: Panels) -> None:
        """`weight` [out_features, in_features] is copied, `bias` [out_features] kept. Of bfloat16 in_features
        must be even."""
        super().__init__()
        self._library = library
        self.out_features, self.in_features = weight.shape
        self.dtype = weight.dtype
        stored = _narrowest(weight.detach())
        self.panels = nn.Parameter(_laid_out(stored, library.width[self.dtype]), requires_grad=False)
        self.bias = bias

    @property
    def weight(self) -> Tensor:
        """Returns a copy as it was given, for model code that does more with a layer than to call it."""
        flat = self.panels.transpose(1, 2).reshape(-1, self.in_features)
        return flat[: self.out_features].to(self.dtype).contiguous()

    def forward(self, rows: Tensor) -> Tensor:
        if rows.dtype != self.dtype:
            raise RuntimeError(f"rows are {rows.dtype}, and their weight {self.dtype}")
        if rows.shape[-1] != self.in_features:
            raise RuntimeError(
                f"rows have {rows.shape[-1]} features, their weight [{self.out_features}, {self.in_features}]"
            )
        if torch.compiler.is_compiling():
            answer: Tensor = torch.ops.millstream.panel_linear.default(
                rows, self.panels, self.bias, self.out_features
            )
            return answer
        return _multiply(self._library, rows, self.panels, self.bias, self.out_features)


def _multiply(
    library: Panels, rows: Tensor, panels: Tensor, bias: Tensor | None, out_features: int
) -> Tensor:
    """Multiplies rows [..., in] by a weight [out, in] in panels: [..., out]."""
    rows = rows.contiguous()
    *sizes, in_features = rows.shape
    answer = intercept.empty(rows, *sizes, out_features)
    intercept.call(
        library.multiply[rows.dtype, panels.dtype],
        (rows, panels, bias, answer),
        rows.numel() // in_features,
        in_features,
        out_features,
        torch.get_num_threads(),
    )
    return answer


def _narrowest(weight: Tensor) -> Tensor:
    """Returns the weight in bfloat16, if that holds the same numbers."""
    if weight.dtype == torch.bfloat16 or weight.shape[1] % PER[torch.bfloat16]:
        return weight
    parts = torch.split(weight, _COMPARED)
    narrow = all(torch.equal(part.bfloat16().float(), part) for part in parts)
    return weight.bfloat16() if narrow else weight


def _laid_out(weight: Tensor, width: int) -> Tensor:
    """Returns [out / width, in / per, width, per] of [out, in]; what is missing in the last panel is 0."""
    (outputs, inputs), per = weight.shape, PER[weight.dtype]
    missing = -outputs % width
    padded = functional.pad(weight, (0, 0, 0, missing)) if missing else weight
    return padded.reshape(-1, width, inputs // per, per).transpose(1, 2).contiguous()


def _compiled(rows: Tensor, panels: Tensor, bias: Tensor | None, out_features: int) -> Tensor:
    assert SURROUNDINGS.panels is not None, "there are no layers in panels without it"
    return _multiply(SURROUNDINGS.panels, rows, panels, bias, out_features)


define(
    "panel_linear(Tensor rows, Tensor panels, Tensor? bias, int out_features) -> Tensor",
    _compiled,
    lambda rows, panels, bias, out_features: rows.new_empty(*rows.shape[:-1], out_features),
)
