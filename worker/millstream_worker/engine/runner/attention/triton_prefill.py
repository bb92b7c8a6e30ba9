"""Attention of rows with any number of new tokens over their whole cached context, those tokens included."""

# Triton's types are none of Python's:
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl

from millstream_worker.engine.runner.attention.triton_tile import LOG2_E, attend_range


@triton.jit
def prefill_kernel(
    query,  # [tokens, heads, KEY_DIM]
    keys,
    values,
    tables,  # [segments, table_stride] int32
    kv_lens,  # [segments] int32
    query_lens,  # [segments] int32
    query_starts,  # [segments] int32: packed position of a segment's first token
    tile_segments,  # [tiles] int32
    tile_firsts,  # [tiles] int32: a tile's first token, counted within its segment
    sinks,  # [heads], read only where SINKS
    out,  # [tokens, heads, VALUE_DIM], contiguous
    scale,
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
    ROWS: tl.constexpr,  # TOKENS * GROUP, padded
    TOKENS: tl.constexpr,  # new tokens of a tile
    KEYS: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    SINKS: tl.constexpr,
):
    tile = tl.program_id(0)
    kv_head = tl.program_id(1).to(tl.int64)
    segment = tl.load(tile_segments + tile).to(tl.int64)
    first = tl.load(tile_firsts + tile)
    query_len = tl.load(query_lens + segment)
    cached = tl.load(kv_lens + segment) - query_len  # keys from before this step
    start = 0
    if WINDOW > 0:
        start = tl.maximum(cached + first + 1 - WINDOW, 0)
    end = cached + tl.minimum(first + TOKENS, query_len)

    member = tl.arange(0, ROWS)
    token = first + member // GROUP
    head = kv_head * GROUP + member % GROUP
    mine = (member < TOKENS * GROUP) & (token < query_len)
    packed = (tl.load(query_starts + segment) + token).to(tl.int64)
    key_place = tl.arange(0, PAD_KEY)
    value_place = tl.arange(0, PAD_VALUE)
    asked = tl.load(
        query + packed[:, None] * query_token_stride + head[:, None] * query_head_stride + key_place[None, :],
        mask=mine[:, None] & (key_place < KEY_DIM)[None, :],
        other=0.0,
    )
    highest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    if SINKS:
        highest = tl.load(sinks + head, mask=mine, other=0.0).to(tl.float32) * LOG2_E
        total += 1.0
    highest, total, seen = attend_range(
        asked,
        cached + token,
        start,
        end,
        keys + kv_head * key_head_stride,
        values + kv_head * value_head_stride,
        tables + segment * table_stride,
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
    answer = seen / tl.where(total > 0, total, 1.0)[:, None]  # padding rows may have seen nothing
    target = out + (packed * HEADS + head)[:, None] * VALUE_DIM + value_place[None, :]
    stored = mine[:, None] & (value_place < VALUE_DIM)[None, :]
    tl.store(target, answer.to(out.dtype.element_ty), mask=stored)
