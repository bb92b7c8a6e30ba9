"""Checks that a device multiplies in FP8 as plain PyTorch multiplies what the codes stand for."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import linear

from millstream_worker.engine.runner.linear.float8_layers import Float8Linear, quantized
from millstream_worker.engine.runner.self_check.deviation import TOLERANCE, compare
from millstream_worker.engine.runner.self_check.findings import Findings, short

_ROWS = (1, 17, 300)
_OUTPUTS = 2048  # that are compared, from the last one


def check_products(model: nn.Module, findings: Findings) -> None:
    """Check one `Float8Linear` of each shape, if there are any. Raises ValueError."""
    layers = [module for module in model.modules() if isinstance(module, Float8Linear)]
    if not layers:
        return
    shapes = {tuple(layer.codes.shape): layer for layer in layers}
    try:
        worst = max(_check(layer, rows) for layer in shapes.values() for rows in _ROWS)
    except Exception as error:  # of a library, a driver, or a mismatch
        raise ValueError(f"weights 'fp8' do not work here: {short(error)}; use 'auto'") from error
    findings.passed("FP8 products", worst)


@torch.inference_mode()
def _check(layer: Float8Linear, count: int) -> float:
    """Returns the deviation. Raises Mismatch."""
    generator = torch.Generator().manual_seed(count)
    rows = torch.randn(count, layer.in_features, generator=generator).bfloat16().to(layer.codes.device)
    codes, scales = quantized(rows)
    weight = layer.codes[-_OUTPUTS:].float() * layer.scales[0, -_OUTPUTS:, None]
    bias = None if layer.bias is None else layer.bias[-_OUTPUTS:].float()
    want = linear(codes.float() * scales, weight, bias)
    what = f"a product of {count} rows with an FP8 weight {list(layer.codes.shape)}"
    return compare(layer(rows)[:, -_OUTPUTS:].float(), want, what, TOLERANCE[torch.bfloat16])
