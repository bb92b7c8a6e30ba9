"""Checks that a compiled library computes linear layers, and which token is the most likely, as plain PyTorch
does: a compiler, or a processor that is not what it says, shall not cost wrong tokens. Its attention is
checked with the model's layers, see attention_check.py."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional

from millstream_worker.engine.runner.linear.panel import PanelLinear
from millstream_worker.engine.runner.linear.quantized_layers import QuantizedLinear
from millstream_worker.engine.runner.native.library import Library
from millstream_worker.engine.runner.quantization.codes import pack
from millstream_worker.engine.runner.quantization.weight_codes import GROUP
from millstream_worker.engine.runner.sampling.native_chooser import NativeGreedy
from millstream_worker.engine.runner.self_check.deviation import TOLERANCE, Mismatch, compare

_LINEAR = ((1, 48, 80), (7, 600, 130), (300, 1030, 200))  # rows, inputs, outputs


@torch.inference_mode()
def check(library: Library) -> None:
    """Raises Mismatch where the library computes something else."""
    _check_linear(library)
    _check_codes(library)
    _check_most_likely(library)


def _check_linear(library: Library) -> None:
    """Checks rows and weights of each type: a layer of float32 keeps weights as bfloat16 if they are such."""
    if library.panels is None:
        return
    random = torch.Generator().manual_seed(0)
    for dtype, weights in library.panels.multiply:
        for count, inputs, outputs in _LINEAR:
            rows = torch.randn(count, inputs, generator=random).to(dtype)
            weight = (torch.randn(outputs, inputs, generator=random) / inputs**0.5).to(weights).to(dtype)
            bias = torch.randn(outputs, generator=random).to(dtype)
            got = PanelLinear(weight, bias, library.panels)(rows).float()
            want = functional.linear(rows.float(), weight.float(), bias.float())
            compare(got, want, f"a linear layer of compiled code in {dtype}", TOLERANCE[dtype])


def _check_codes(library: Library) -> None:
    """Checks weights of 8 and of 4 bits, beside the same layer without the library."""
    random = torch.Generator().manual_seed(0)
    for dtype in library.multiply_codes:
        for count, inputs, outputs in _LINEAR:
            rows = torch.randn(count, inputs, generator=random).to(dtype)
            bytes_ = torch.randint(-127, 128, (outputs, inputs), generator=random).to(torch.int8)
            groups = -(-inputs // GROUP)
            scales, offsets = (torch.rand(outputs, groups, generator=random) / inputs for _ in range(2))
            weights = (
                pack(bytes_, scales / 9),
                pack(bytes_.abs().to(torch.uint8) % 16, scales),
                pack(bytes_.abs().to(torch.uint8) % 16, scales, -8 * offsets),
            )
            for weight in weights:
                got, want = (QuantizedLinear(weight, None, dtype, one)(rows) for one in (library, None))
                compare(
                    got.float(),
                    want.float(),
                    f"a layer of compiled code of {weight.bits} bits",
                    TOLERANCE[dtype],
                )


def _check_most_likely(library: Library) -> None:
    random = torch.Generator().manual_seed(0)
    for dtype in library.most_likely:
        logits = torch.randn(9, 40_000, generator=random).to(dtype)  # enough for several threads
        logits[1, 7], logits[2, 39_999], logits[3] = torch.nan, torch.inf, -torch.inf
        logits[4] = -logits[4].abs()
        logits[4, [100, 20_000]] = torch.tensor([-0.0, 0.0], dtype=dtype)
        values = logits.float().numpy()
        want = values.argmax(-1)  # of the first NaN, where there is one
        non_finite = ~np.isfinite(values[np.arange(len(want)), want])
        tokens, unsound = NativeGreedy(library).most_likely(logits)
        if not (
            np.array_equal(unsound, non_finite) and np.array_equal(tokens, np.where(non_finite, 0, want))
        ):
            raise Mismatch(f"the compiled search for the most likely token is wrong in {dtype}")
