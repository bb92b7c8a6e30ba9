"""Attention of rows with any number of new tokens over their whole cached context, those tokens included."""

# Triton's types are none of Python's:
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl

from millstream_worker.engine.runner.attention.triton.tile import (
    attend_range,
    empty_sums,
    load_queries,
    store_answers,
)


@triton.jit
def clear_range(start, end, own, KEYS: tl.constexpr, WINDOW: tl.constexpr):
    """The whole turns of [start, end) that are seen by each of the queries whose own places are
    [own, end)."""
    clear_end = start + tl.maximum(tl.minimum(own + 1, end) - start, 0) // KEYS * KEYS
    if WINDOW == 0:
        return start, clear_end
    hidden = tl.maximum(end - WINDOW - start, 0)  # keys from `start` on that the last query does not see
    return tl.minimum(start + tl.cdiv(hidden, KEYS) * KEYS, clear_end), clear_end


@triton.jit(do_not_specialize=["table_stride"])
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
    start = tl.maximum(cached + first + 1 - WINDOW, 0) if WINDOW > 0 else 0
    end = cached + tl.minimum(first + TOKENS, query_len)
    clear_start, clear_end = clear_range(start, end, cached + first, KEYS, WINDOW)

    member = tl.arange(0, ROWS)
    token = first + member // GROUP
    head = kv_head * GROUP + member % GROUP
    mine = (member < TOKENS * GROUP) & (token < query_len)
    packed = (tl.load(query_starts + segment) + token).to(tl.int64)
    asked = load_queries(query, packed, head, mine, query_token_stride, query_head_stride, KEY_DIM, PAD_KEY)
    highest, total = empty_sums(sinks, head, mine, ROWS, SINKS)
    answer, _ = attend_range(
        asked, cached + token, start, end, clear_start, clear_end,
        keys, values, kv_head, tables + segment * table_stride, scale, highest, total,
        ROWS, HEADS, GROUP, KEY_DIM, VALUE_DIM, PAD_KEY, PAD_VALUE, BLOCK_SIZE, KEYS,
        True, WINDOW, SOFTCAP,
    )  # fmt: skip
    store_answers(out, packed * HEADS + head, answer, mine, VALUE_DIM, PAD_VALUE)
