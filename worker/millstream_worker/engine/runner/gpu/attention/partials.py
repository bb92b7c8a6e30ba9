"""Puts the partial answers of tokens together by the logarithms of their sums."""

# Triton's types are none of Python's:
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl

from millstream_worker.engine.runner.gpu.attention.tile import LOG2_E

AT_ONCE = tl.constexpr(16)  # partials; a kernel for each number of them would be too many to compile


@triton.jit
def merge_kernel(
    partials,  # [partials, heads, VALUE_DIM] float32
    partial_sums,  # [partials, heads] float32: logarithm of each sum of weights, in base 2
    merges,  # [merges, 3] int32: token, first partial, how many; -1: nothing to do
    sinks,  # [heads], read only where SINKS
    out,  # [tokens, heads, VALUE_DIM], contiguous
    HEADS: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    PAD_VALUE: tl.constexpr,
    SINKS: tl.constexpr,
):
    merge = merges + tl.program_id(0) * 3
    head = tl.program_id(1)
    token = tl.load(merge).to(tl.int64)
    if token < 0:
        return
    first = tl.load(merge + 1).to(tl.int64)
    count = tl.load(merge + 2)
    number = tl.arange(0, AT_ONCE)
    value_place = tl.arange(0, PAD_VALUE)
    highest = tl.full([], float("-inf"), tl.float32)
    total = tl.full([], 0.0, tl.float32)
    if SINKS:
        highest = tl.load(sinks + head).to(tl.float32) * LOG2_E
        total += 1.0
    seen = tl.zeros([PAD_VALUE], tl.float32)
    for begin in range(0, count, AT_ONCE):
        mine = begin + number < count
        source = (first + begin + number) * HEADS + head
        sums = tl.load(partial_sums + source, mask=mine, other=float("-inf"))
        higher = tl.maximum(highest, tl.max(sums, 0))
        base = tl.where(higher == float("-inf"), 0.0, higher)  # nothing seen yet: no inf - inf
        weights = tl.exp2(sums - base)
        fade = tl.exp2(highest - base)
        answers = tl.load(
            partials + source[:, None] * VALUE_DIM + value_place[None, :],
            mask=mine[:, None] & (value_place < VALUE_DIM)[None, :],
            other=0.0,
        )
        seen = seen * fade + tl.sum(answers * weights[:, None], 0)
        total = total * fade + tl.sum(weights, 0)
        highest = higher
    answer = seen / tl.where(total > 0, total, 1.0)
    target = out + (token * HEADS + head) * VALUE_DIM + value_place
    tl.store(target, answer.to(out.dtype.element_ty), mask=value_place < VALUE_DIM)
