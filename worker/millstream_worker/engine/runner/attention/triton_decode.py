"""Attention of rows with one new token each. A long context is split among programs, whose parts a second
kernel puts together (split-KV, https://crfm.stanford.edu/2023/10/12/flashdecoding.html)."""

# Triton's types are none of Python's:
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl

from millstream_worker.engine.runner.attention.triton_tile import LOG2_E, attend_range


@triton.jit
def decode_kernel(
    query,  # [rows, heads, KEY_DIM]
    keys,
    values,
    tables,  # [rows, table_stride] int32
    kv_lens,  # [rows] int32
    sinks,  # [heads], read only where SINKS
    out,  # [rows, heads, VALUE_DIM], contiguous; written where SPLITS is 1
    parts,  # [rows, heads, SPLITS, VALUE_DIM] float32; written otherwise
    part_sums,  # [rows, heads, SPLITS] float32: logarithm of each part's sum of weights, in base 2
    scale,
    split_keys,  # keys per split
    query_token_stride,
    query_head_stride,
    table_stride,
    key_block_stride,
    key_head_stride,
    key_token_stride,
    value_block_stride,
    value_head_stride,
    value_token_stride,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,  # query heads of a KV head
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    PAD_KEY: tl.constexpr,
    PAD_VALUE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,  # GROUP, padded
    KEYS: tl.constexpr,
    SPLITS: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    SINKS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1).to(tl.int64)
    split = tl.program_id(2)
    kv_len = tl.load(kv_lens + row)
    start = split * split_keys
    if WINDOW > 0:
        start += tl.maximum(kv_len - WINDOW, 0)
    end = tl.minimum(start + split_keys, kv_len)

    member = tl.arange(0, ROWS)
    head = kv_head * GROUP + member
    mine = member < GROUP
    key_place = tl.arange(0, PAD_KEY)
    value_place = tl.arange(0, PAD_VALUE)
    asked = tl.load(
        query + row * query_token_stride + head[:, None] * query_head_stride + key_place[None, :],
        mask=mine[:, None] & (key_place < KEY_DIM)[None, :],
        other=0.0,
    )
    highest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    if SINKS and SPLITS == 1:
        highest = tl.load(sinks + head, mask=mine, other=0.0).to(tl.float32) * LOG2_E
        total += 1.0
    highest, total, seen = attend_range(
        asked,
        tl.zeros([ROWS], tl.int32) + (kv_len - 1),
        start,
        end,
        keys + kv_head * key_head_stride,
        values + kv_head * value_head_stride,
        tables + row * table_stride,
        scale,
        key_block_stride,
        key_token_stride,
        value_block_stride,
        value_token_stride,
        highest,
        total,
        tl.zeros([ROWS, PAD_VALUE], tl.float32),
        KEY_DIM,
        VALUE_DIM,
        PAD_KEY,
        PAD_VALUE,
        BLOCK_SIZE,
        KEYS,
        WINDOW,
        SOFTCAP,
    )
    total = tl.where(total > 0, total, 1.0)  # a split beyond the row's end has seen nothing
    answer = seen / total[:, None]
    stored = mine[:, None] & (value_place < VALUE_DIM)[None, :]
    place = row * HEADS + head
    if SPLITS == 1:
        target = out + place[:, None] * VALUE_DIM + value_place[None, :]
        tl.store(target, answer.to(out.dtype.element_ty), mask=stored)
    else:
        place = place * SPLITS + split
        tl.store(parts + place[:, None] * VALUE_DIM + value_place[None, :], answer, mask=stored)
        tl.store(part_sums + place, highest + tl.log2(total), mask=mine)


@triton.jit
def combine_kernel(
    parts,
    part_sums,
    sinks,
    out,
    HEADS: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    PAD_VALUE: tl.constexpr,
    SPLITS: tl.constexpr,
    PAD_SPLITS: tl.constexpr,
    SINKS: tl.constexpr,
):
    place = tl.program_id(0).to(tl.int64) * HEADS + tl.program_id(1)
    split = tl.arange(0, PAD_SPLITS)
    value_place = tl.arange(0, PAD_VALUE)
    sums = tl.load(part_sums + place * SPLITS + split, mask=split < SPLITS, other=float("-inf"))
    highest = tl.max(sums, 0)
    sink = float("-inf")
    if SINKS:
        sink = tl.load(sinks + tl.program_id(1)).to(tl.float32) * LOG2_E
        highest = tl.maximum(highest, sink)
    weights = tl.exp2(sums - highest)
    total = tl.sum(weights, 0) + tl.exp2(sink - highest)
    part = tl.load(
        parts + (place * SPLITS + split)[:, None] * VALUE_DIM + value_place[None, :],
        mask=(split < SPLITS)[:, None] & (value_place < VALUE_DIM)[None, :],
        other=0.0,
    )
    answer = tl.sum(part * weights[:, None], 0) / total
    target = out + place * VALUE_DIM + value_place
    tl.store(target, answer.to(out.dtype.element_ty), mask=value_place < VALUE_DIM)
