"""Computes the attention of a tile of queries to a range of the keys that a block table names, for all
kernels.

A tile packs the query heads of one KV head, of one or more tokens, so that a key is read once for all of
them. Online softmax (https://arxiv.org/abs/2205.14135) in base 2, in float32. Keys and values lie as the KV
storage says, without gaps. Codes of 8 bits are multiplied as they are: a key's scale and middle join its
score, a value's scale its weight.
"""

# Triton's types are none of Python's:
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
# Of weights times scales of values, which float16 would otherwise make less exact where values are small.
_LIFT = tl.constexpr(64.0)


@triton.jit
def load_queries(
    query,  # [tokens, heads, KEY_DIM]
    token,  # [ROWS], or one for all of them
    head,  # [ROWS]
    mine,  # [ROWS] the rows that hold a query; the others are 0
    token_stride,
    head_stride,
    KEY_DIM: tl.constexpr,
    PAD_KEY: tl.constexpr,
):
    place = tl.arange(0, PAD_KEY)
    rows = query + token * token_stride + head * head_stride
    mask = mine[:, None] & (place < KEY_DIM)[None, :]
    return tl.load(rows[:, None] + place[None, :], mask=mask, other=0.0)


@triton.jit
def store_answers(
    target,
    place,  # [ROWS] number of each row in the target, whose rows are VALUE_DIM wide
    answer,  # [ROWS, PAD_VALUE]
    mine,
    VALUE_DIM: tl.constexpr,
    PAD_VALUE: tl.constexpr,
):
    value_place = tl.arange(0, PAD_VALUE)
    mask = mine[:, None] & (value_place < VALUE_DIM)[None, :]
    rows = target + place * VALUE_DIM
    tl.store(rows[:, None] + value_place[None, :], answer.to(target.dtype.element_ty), mask=mask)


@triton.jit
def store_partials(
    partials,  # [partials, heads, VALUE_DIM] float32
    partial_sums,  # [partials, heads] float32
    place,  # [ROWS] number of each row in both
    answer,  # [ROWS, PAD_VALUE]
    log_sum,  # [ROWS]
    mine,
    VALUE_DIM: tl.constexpr,
    PAD_VALUE: tl.constexpr,
):
    store_answers(partials, place, answer, mine, VALUE_DIM, PAD_VALUE)
    tl.store(partial_sums + place, log_sum, mask=mine)


@triton.jit
def empty_sums(sinks, head, mine, ROWS: tl.constexpr, SINKS: tl.constexpr):
    """Returns [ROWS] highest score, and sum of the weights relative to it, before any key: a sink weighs and
    has no value. Rows that are not `mine` have none."""
    highest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    if SINKS:
        sink = tl.load(sinks + head, mask=mine, other=float("-inf")).to(tl.float32)
        highest = sink * LOG2_E
        total = tl.where(mine, 1.0, 0.0)
    return highest, total


@triton.jit
def attend_range(
    queries,  # [ROWS, PAD_KEY]
    own,  # [ROWS] each query's own place in its row: it sees keys up to there
    start,  # places in the row, [start, end)
    end,
    clear_start,  # every query sees all keys in [clear_start, clear_end): whole turns, counted from `start`
    clear_end,
    keys,  # [blocks, kv_heads, BLOCK_SIZE, KEY_DIM]
    values,  # [blocks, kv_heads, BLOCK_SIZE, VALUE_DIM]
    key_scales,  # [blocks, kv_heads, BLOCK_SIZE] int32: scale and middle in bfloat16; read only where INT8
    value_scales,  # the same, int16: scale in bfloat16
    kv_head,
    table,  # the row's block table
    scale,
    highest,  # [ROWS] highest score so far, in base 2
    total,  # [ROWS] sum of the weights so far, relative to it
    ROWS: tl.constexpr,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    PAD_KEY: tl.constexpr,
    PAD_VALUE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    KEYS: tl.constexpr,  # keys of a turn
    CLEAR: tl.constexpr,  # there are turns without a mask; else [clear_start, clear_end) is empty
    WINDOW: tl.constexpr,  # 0: none
    SOFTCAP: tl.constexpr,  # 0: none
    INT8: tl.constexpr,  # keys and values are codes
):
    """Returns [ROWS, PAD_VALUE] the weighted mean of the values, and [ROWS] the logarithm of the weights'
    sum, in base 2; what has seen nothing answers 0. Turns without a mask come first: the order changes
    nothing."""
    turn = tl.arange(0, KEYS)
    seen = tl.zeros([ROWS, PAD_VALUE], tl.float32)  # sum of the weighted values, relative to `highest`
    factor = scale * (2 * LOG2_E / SOFTCAP if SOFTCAP > 0 else LOG2_E)
    query_sum = tl.sum(queries.to(tl.float32), 1) if INT8 else total
    # Blocks are looked up one turn ahead: else a turn waits for its blocks before it can ask for their keys.
    if CLEAR:
        place = clear_start + turn
        ahead = tl.load(table + place // BLOCK_SIZE, mask=place < clear_end, other=0)
        for first in range(clear_start, clear_end, KEYS):
            place = first + turn
            block = ahead.to(tl.int64)
            ahead = tl.load(table + (place + KEYS) // BLOCK_SIZE, mask=place + KEYS < clear_end, other=0)
            row = (block * (HEADS // GROUP) + kv_head) * BLOCK_SIZE + place % BLOCK_SIZE
            seen, highest, total = _turn(
                queries, query_sum, own, place, end, keys, values, key_scales, value_scales, row, factor,
                seen, highest, total, KEY_DIM, VALUE_DIM, PAD_KEY, PAD_VALUE, WINDOW, SOFTCAP, INT8, False,
            )  # fmt: skip
    jump = clear_end - clear_start
    place = start + tl.where(start >= clear_start, jump, 0) + turn
    ahead = tl.load(table + place // BLOCK_SIZE, mask=place < end, other=0)
    for first in range(start, end - jump, KEYS):
        place = first + tl.where(first >= clear_start, jump, 0) + turn
        block = ahead.to(tl.int64)
        later = first + KEYS + tl.where(first + KEYS >= clear_start, jump, 0) + turn
        ahead = tl.load(table + later // BLOCK_SIZE, mask=later < end, other=0)
        row = (block * (HEADS // GROUP) + kv_head) * BLOCK_SIZE + place % BLOCK_SIZE
        seen, highest, total = _turn(
            queries, query_sum, own, place, end, keys, values, key_scales, value_scales, row, factor,
            seen, highest, total, KEY_DIM, VALUE_DIM, PAD_KEY, PAD_VALUE, WINDOW, SOFTCAP, INT8, True,
        )  # fmt: skip
    total = tl.where(total > 0, total, 1.0)
    return seen / (total * _LIFT if INT8 else total)[:, None], highest + tl.log2(total)


@triton.jit
def _turn(
    queries,
    query_sum,  # [ROWS] of each query's numbers, where INT8
    own,
    place,  # [KEYS] of the turn's keys in the row
    end,
    keys,
    values,
    key_scales,
    value_scales,
    row,  # [KEYS] and in the storage
    factor,  # of a product of query and key: its score in base 2; its place in tanh, for a soft cap
    seen,
    highest,
    total,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    PAD_KEY: tl.constexpr,
    PAD_VALUE: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    INT8: tl.constexpr,
    MASKED: tl.constexpr,
):
    key_place = tl.arange(0, PAD_KEY)
    value_place = tl.arange(0, PAD_VALUE)
    key_mask = (key_place < KEY_DIM)[:, None]
    value_mask = (value_place < VALUE_DIM)[None, :]
    if MASKED:
        key_mask = key_mask & (place < end)[None, :]
        value_mask = value_mask & (place < end)[:, None]
    key = tl.load(keys + (row * KEY_DIM)[None, :] + key_place[:, None], mask=key_mask, other=0)
    scores = tl.dot(queries, key.to(queries.dtype), input_precision="ieee")
    if INT8:
        pair = _load_scales(key_scales, row, place < end, MASKED)
        key_scale = (pair << 16).to(tl.float32, bitcast=True)
        middle = (pair & -65536).to(tl.float32, bitcast=True)
        scores = scores * key_scale[None, :] + query_sum[:, None] * middle[None, :]
    if SOFTCAP > 0:
        scores = SOFTCAP * LOG2_E * (1.0 - 2.0 / (tl.exp2(scores * factor) + 1.0))  # tanh
        factor = 1.0
    if MASKED:
        visible = (place < end)[None, :] & (place[None, :] <= own[:, None])
        if WINDOW > 0:
            visible = visible & (place[None, :] > own[:, None] - WINDOW)
        scores = tl.where(visible, scores, float("-inf"))
    higher = tl.maximum(highest, tl.max(scores, 1) * factor)
    base = higher
    if MASKED:
        base = tl.where(higher == float("-inf"), 0.0, higher)  # nothing seen yet: no inf - inf
    weights = tl.exp2(scores * factor - base[:, None])
    fade = tl.exp2(highest - base)
    value = tl.load(values + (row * VALUE_DIM)[:, None] + value_place[None, :], mask=value_mask, other=0)
    shares = weights
    if INT8:
        # The four bytes that a scale is in: loads of two would not be made ahead. Where a storage has an odd
        # number of scales, that reads two bytes more, which no allocator gives to anybody else.
        words = value_scales.to(tl.pointer_type(tl.int32), bitcast=True)
        word = _load_scales(words, row >> 1, place < end, MASKED)
        value_scale = ((word << (16 - (row & 1).to(tl.int32) * 16)) & -65536).to(tl.float32, bitcast=True)
        shares = weights * (value_scale * _LIFT)[None, :]
    value = value.to(queries.dtype)
    seen = seen * fade[:, None] + tl.dot(shares.to(value.dtype), value, input_precision="ieee")
    return seen, higher, total * fade + tl.sum(weights, 1)


@triton.jit
def _load_scales(scales, row, mine, MASKED: tl.constexpr):
    if MASKED:
        return tl.load(scales + row, mask=mine, other=0)
    return tl.load(scales + row)
