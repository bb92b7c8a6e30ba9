"""Attention of rows with one new token each. Of a long context each program reads a part, and of a beginning
that rows share those of `shared_kernel`, where a tile holds the query heads of one KV head of several rows,
and loads each shared key once for all of them.

    partials of a row    │ of the parts of its shared beginning │ of its own parts │
"""

# Triton's types are none of Python's:
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl

from millstream_worker.engine.runner.gpu.attention.tile import (
    attend_range,
    empty_sums,
    load_queries,
    store_answers,
    store_partials,
)


@triton.jit(do_not_specialize=["table_stride"])
def decode_kernel(
    query,  # [rows, heads, KEY_DIM]
    keys,
    values,
    key_scales,
    value_scales,
    tables,  # [rows, table_stride] int32
    decode_parts,  # [parts, 4] int32, see DeviceStep
    sinks,  # [heads], read only where SINKS
    out,  # [rows, heads, VALUE_DIM], contiguous; written where a row has one part
    partials,  # [partials, heads, VALUE_DIM] float32; written otherwise
    partial_sums,  # [partials, heads] float32: logarithm of each sum of weights, in base 2
    scale,
    query_token_stride,
    query_head_stride,
    table_stride,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,  # query heads of a KV head
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    PAD_KEY: tl.constexpr,
    PAD_VALUE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,  # GROUP, padded
    KEYS: tl.constexpr,
    SOFTCAP: tl.constexpr,
    INT8: tl.constexpr,
    SINKS: tl.constexpr,
):
    part = decode_parts + tl.program_id(0) * 4
    kv_head = tl.program_id(1).to(tl.int64)
    row = tl.load(part).to(tl.int64)
    if row < 0:
        return
    start = tl.load(part + 1)
    end = tl.load(part + 2)
    partial = tl.load(part + 3)

    member = tl.arange(0, ROWS)
    head = kv_head * GROUP + member
    mine = member < GROUP
    asked = load_queries(query, row, head, mine, query_token_stride, query_head_stride, KEY_DIM, PAD_KEY)
    highest, total = empty_sums(sinks, head, mine & (partial < 0), ROWS, SINKS)
    answer, log_sum = attend_range(
        asked, tl.zeros([ROWS], tl.int32) + end, start, end, start, start,
        keys, values, key_scales, value_scales, kv_head, tables + row * table_stride, scale,
        highest, total,
        ROWS, HEADS, GROUP, KEY_DIM, VALUE_DIM, PAD_KEY, PAD_VALUE, BLOCK_SIZE, KEYS,
        False, 0, SOFTCAP, INT8,
    )  # fmt: skip
    if partial < 0:
        store_answers(out, row * HEADS + head, answer, mine, VALUE_DIM, PAD_VALUE)
    else:
        place = partial.to(tl.int64) * HEADS + head
        store_partials(partials, partial_sums, place, answer, log_sum, mine, VALUE_DIM, PAD_VALUE)


@triton.jit(do_not_specialize=["table_stride"])
def shared_kernel(
    query,  # [rows, heads, KEY_DIM]
    keys,
    values,
    key_scales,
    value_scales,
    tables,  # [rows, table_stride] int32
    shared_parts,  # [parts, 5] int32, see DeviceStep
    members,  # [members] int32: rows that share, prefix group after prefix group
    member_partials,  # [rows] int32: each one's first partial
    partials,  # [partials, heads, VALUE_DIM] float32
    partial_sums,  # [partials, heads] float32
    scale,
    query_token_stride,
    query_head_stride,
    table_stride,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,  # query heads of a KV head
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    PAD_KEY: tl.constexpr,
    PAD_VALUE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,  # query heads of a tile, padded
    KEYS: tl.constexpr,
    SOFTCAP: tl.constexpr,
    INT8: tl.constexpr,
):
    part = shared_parts + tl.program_id(0) * 5
    kv_head = tl.program_id(1).to(tl.int64)
    first = tl.load(part)
    if first < 0:
        return
    count = tl.load(part + 1)
    start = tl.load(part + 2)
    end = tl.load(part + 3)
    leader = tl.load(members + first).to(tl.int64)  # any member's table begins with the shared blocks

    place = tl.arange(0, ROWS)
    mine = place < count * GROUP
    row = tl.load(members + first + place // GROUP, mask=mine, other=0).to(tl.int64)
    head = kv_head * GROUP + place % GROUP
    asked = load_queries(query, row, head, mine, query_token_stride, query_head_stride, KEY_DIM, PAD_KEY)
    highest, total = empty_sums(query, head, mine, ROWS, False)
    answer, log_sum = attend_range(
        asked, tl.zeros([ROWS], tl.int32) + end, start, end, start, start + (end - start) // KEYS * KEYS,
        keys, values, key_scales, value_scales, kv_head, tables + leader * table_stride, scale,
        highest, total,
        ROWS, HEADS, GROUP, KEY_DIM, VALUE_DIM, PAD_KEY, PAD_VALUE, BLOCK_SIZE, KEYS,
        True, 0, SOFTCAP, INT8,
    )  # fmt: skip
    target = tl.load(member_partials + row, mask=mine, other=0).to(tl.int64) + tl.load(part + 4)
    place = target * HEADS + head
    store_partials(partials, partial_sums, place, answer, log_sum, mine, VALUE_DIM, PAD_VALUE)
