"""Applies grammars' masks to logits, in place: one launch for all rows that have a grammar."""

# Triton's types are none of Python's:
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl

BLOCK = tl.constexpr(2048)  # tokens of a program


@triton.jit
def mask_kernel(
    logits,  # [.., VOCAB], written
    rows,  # [masks] int32: which of the logits
    bits,  # [masks, words] int32: a bit for each token, token 0 lowest; where it is 0, the logit becomes -inf
    row_stride,
    words,
    VOCAB: tl.constexpr,
):
    mask = tl.program_id(0)
    row = logits + tl.load(rows + mask).to(tl.int64) * row_stride
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = place < VOCAB
    word = tl.load(bits + mask.to(tl.int64) * words + place // 32, mask=inside, other=0)
    values = tl.load(row + place, mask=inside).to(tl.float32)
    allowed = ((word >> (place % 32)) & 1) != 0
    tl.store(row + place, tl.where(allowed, values, float("-inf")), mask=inside)
