"""The weights that the kernel draws from, which may differ from `draw.weigh` in their last bits."""

# Triton's types are none of Python's:
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from millstream_worker.engine.runner.gpu.sampling.draw_kernel import BLOCK, highest_logits, load_weights
from millstream_worker.engine.runner.sampling.draw import weight_bits


def drawn_weights(logits: Tensor, temperature: Tensor) -> Tensor:
    """Integer weights [L, V] of sound logits [L, V] at temperatures [L] (float64)."""
    rows, vocab_size = logits.shape
    weights = torch.empty(rows, vocab_size, dtype=torch.int64, device=logits.device)
    sizes = {"VOCAB": vocab_size, "BITS": weight_bits(vocab_size)}
    weights_kernel[rows,](logits, temperature, weights, logits.stride(0), **sizes, num_warps=16)
    return weights


@triton.jit
def weights_kernel(
    logits,  # [rows, VOCAB]
    temperatures,  # [rows] float64
    out,  # [rows, VOCAB] int64
    row_stride,
    VOCAB: tl.constexpr,
    BITS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    temperature = tl.load(temperatures + row).to(tl.float32)
    logits += row * row_stride
    peak = tl.max(highest_logits(logits, VOCAB), 0)
    for start in range(0, VOCAB, BLOCK):
        place = start + tl.arange(0, BLOCK)
        weights = load_weights(logits, start, peak, temperature, VOCAB, BITS).to(tl.int64)
        tl.store(out + row * VOCAB + place, weights, mask=place < VOCAB)
