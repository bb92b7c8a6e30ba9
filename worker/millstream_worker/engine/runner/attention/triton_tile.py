"""What the decode and the prefill kernel share: a tile of queries attends to a range of its row's keys.

A tile packs the query heads of one KV head, of one or more of the row's new tokens, so that a key is read
once for all of them. Online softmax (https://arxiv.org/abs/2205.14135) in base 2, in float32.
"""

# Triton's types are none of Python's:
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def attend_range(
    queries,  # [ROWS, PAD_KEY]
    own,  # [ROWS] each query's own place in its row: it sees keys up to there
    start,  # places in the row, [start, end)
    end,
    keys,  # of this KV head, as are the values
    values,
    table,  # the row's block table
    scale,
    key_block_stride,
    key_token_stride,
    value_block_stride,
    value_token_stride,
    highest,  # [ROWS] highest score so far, in base 2
    total,  # [ROWS] sum of the weights so far, relative to it
    seen,  # [ROWS, PAD_VALUE] sum of the weighted values so far, relative to it
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    PAD_KEY: tl.constexpr,
    PAD_VALUE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    KEYS: tl.constexpr,  # keys taken at a time
    WINDOW: tl.constexpr,  # 0: none
    SOFTCAP: tl.constexpr,  # 0: none
):
    key_place = tl.arange(0, PAD_KEY)
    value_place = tl.arange(0, PAD_VALUE)
    for first in range(start, end, KEYS):
        place = first + tl.arange(0, KEYS)
        inside = place < end
        block = tl.load(table + place // BLOCK_SIZE, mask=inside, other=0).to(tl.int64)
        offset = (place % BLOCK_SIZE).to(tl.int64)

        key_rows = block * key_block_stride + offset * key_token_stride
        key = tl.load(
            keys + key_rows[None, :] + key_place[:, None],
            mask=inside[None, :] & (key_place < KEY_DIM)[:, None],
            other=0.0,
        )
        scores = tl.dot(queries, key, input_precision="ieee") * scale
        if SOFTCAP > 0:
            scores = SOFTCAP * (1.0 - 2.0 / (tl.exp(2.0 * scores / SOFTCAP) + 1.0))  # tanh
        visible = inside[None, :] & (place[None, :] <= own[:, None])
        if WINDOW > 0:
            visible = visible & (place[None, :] > own[:, None] - WINDOW)
        scores = tl.where(visible, scores * LOG2_E, float("-inf"))

        higher = tl.maximum(highest, tl.max(scores, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher)  # nothing seen yet: no inf - inf
        weights = tl.exp2(scores - base[:, None])
        fade = tl.exp2(highest - base)
        total = total * fade + tl.sum(weights, 1)
        value_rows = block * value_block_stride + offset * value_token_stride
        value = tl.load(
            values + value_rows[:, None] + value_place[None, :],
            mask=inside[:, None] & (value_place < VALUE_DIM)[None, :],
            other=0.0,
        )
        seen = seen * fade[:, None] + tl.dot(weights.to(value.dtype), value, input_precision="ieee")
        highest = higher
    return highest, total, seen
