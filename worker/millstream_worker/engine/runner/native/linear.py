"""Linear layers whose weights lie in panels, multiplied by the compiled library.

A step of few rows waits for nothing but the weights. oneDNN's products read them at 14 to 18 GB/s on two EPYC
cores with AVX-512, these at 24 to 29: 0.55 to 0.7 of its time with one to four rows, 0.8 to 0.95 with 32, as
much with 512 and 2,048, in bfloat16, in float32, and in float32 with AVX2. Measure with `python -m ops.bench
layers`. What a row gets does not depend on who shares its step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import nn
from torch.nn import functional

from millstream_worker.engine.runner.native.library import Library, Panels
from millstream_worker.engine.runner.operation import define

_panels: dict[torch.dtype, Panels] = {}  # of the library in use


def use(library: Library) -> None:
    """Have all `PanelLinear` computed by `library`."""
    _panels.clear()
    _panels.update(library.panels)


@contextlib.contextmanager
def trying(library: Library) -> Iterator[None]:
    """The same for a while."""
    before = dict(_panels)
    _panels.update(library.panels)
    try:
        yield
    finally:
        _panels.clear()
        _panels.update(before)


def fits(weight: torch.Tensor, library: Library) -> bool:
    """Whether a weight [out_features, in_features] can lie in panels of the library."""
    panels = library.panels.get(weight.dtype)
    return panels is not None and weight.numel() > 0 and weight.shape[1] % panels.per == 0


class PanelLinear(nn.Module):
    """What `nn.Linear` computes, for inference on the CPU: [..., in_features] to [..., out_features]."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        """`weight` [out_features, in_features] that fits is copied, `bias` [out_features] kept."""
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.panels = nn.Parameter(_laid_out(weight.detach(), _panels[weight.dtype]), requires_grad=False)
        self.bias = bias

    @property
    def weight(self) -> torch.Tensor:
        """A copy as it was given, for model code that does more with a layer than to call it."""
        flat = self.panels.transpose(1, 2).reshape(-1, self.in_features)
        return flat[: self.out_features].contiguous()

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        if torch.compiler.is_compiling():
            answer: torch.Tensor = torch.ops.millstream.panel_linear.default(
                rows, self.panels, self.bias, self.out_features
            )
            return answer
        _suit(rows, self.panels)
        return multiply(rows, self.panels, self.bias, self.out_features)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}"


def multiply(
    rows: torch.Tensor, panels: torch.Tensor, bias: torch.Tensor | None, out_features: int
) -> torch.Tensor:
    """rows [..., in] with a weight [out, in] in panels: [..., out]."""
    rows = rows.contiguous()
    *sizes, in_features = rows.shape
    answer = rows.new_empty(*sizes, out_features)
    _panels[rows.dtype].multiply(
        rows.data_ptr(),
        panels.data_ptr(),
        None if bias is None else bias.data_ptr(),
        answer.data_ptr(),
        rows.numel() // in_features,
        in_features,
        out_features,
        torch.get_num_threads(),
    )
    return answer


def _suit(rows: torch.Tensor, panels: torch.Tensor) -> None:
    """Raises RuntimeError, as torch's own layers do."""
    count, pairs, width, per = panels.shape
    if rows.dtype != panels.dtype or rows.shape[-1] != pairs * per:
        raise RuntimeError(
            f"rows have {rows.shape[-1]} features of {rows.dtype}, "
            f"their weight [{count * width}, {pairs * per}] of {panels.dtype}"
        )


def _laid_out(weight: torch.Tensor, panels: Panels) -> torch.Tensor:
    """[out / width, in / per, width, per] of [out, in]; what is missing in the last panel is 0."""
    outputs, inputs = weight.shape
    missing = -outputs % panels.width
    padded = functional.pad(weight, (0, 0, 0, missing)) if missing else weight
    return padded.reshape(-1, panels.width, inputs // panels.per, panels.per).transpose(1, 2).contiguous()


def _shaped(
    rows: torch.Tensor, panels: torch.Tensor, bias: torch.Tensor | None, out_features: int
) -> torch.Tensor:
    _suit(rows, panels)
    return rows.new_empty(*rows.shape[:-1], out_features)


define(
    "panel_linear(Tensor rows, Tensor panels, Tensor? bias, int out_features) -> Tensor",
    multiply,
    _shaped,
    ("CPU",),
)
