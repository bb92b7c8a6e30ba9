"""Attention of rows with any number of new tokens over their whole cached context, those tokens included."""

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


@triton.jit
def clear_range(start, end, own, last, KEYS: tl.constexpr, WINDOW: tl.constexpr):
    """The whole turns of [start, end) that are seen by each of the queries with own places [own, last)."""
    clear_end = start + tl.maximum(tl.minimum(own + 1, end) - start, 0) // KEYS * KEYS
    if WINDOW == 0:
        return start, clear_end
    hidden = tl.maximum(last - WINDOW - start, 0)  # keys from `start` on that the last query does not see
    return tl.minimum(start + tl.cdiv(hidden, KEYS) * KEYS, clear_end), clear_end


@triton.jit(do_not_specialize=["table_stride"])
def prefill_kernel(
    query,  # [tokens, heads, KEY_DIM]
    keys,
    values,
    key_scales,
    value_scales,
    tables,  # [segments, table_stride] int32
    kv_lens,  # [segments] int32
    query_lens,  # [segments] int32
    query_starts,  # [segments] int32: packed position of a segment's first token
    prefill_parts,  # [parts, 6] int32, see DeviceStep
    sinks,  # [heads], read only where SINKS
    out,  # [tokens, heads, VALUE_DIM], contiguous; written where a tile has one part
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
    ROWS: tl.constexpr,  # TOKENS * GROUP, padded
    TOKENS: tl.constexpr,  # new tokens of a tile
    KEYS: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    INT8: tl.constexpr,
    SINKS: tl.constexpr,
):
    part = prefill_parts + tl.program_id(0) * 6
    kv_head = tl.program_id(1).to(tl.int64)
    segment = tl.load(part).to(tl.int64)
    if segment < 0:
        return
    first = tl.load(part + 1)
    start = tl.load(part + 2)
    end = tl.load(part + 3)
    partial = tl.load(part + 4)
    query_len = tl.load(query_lens + segment)
    cached = tl.load(kv_lens + segment) - query_len  # keys from before this step
    last = cached + tl.minimum(first + TOKENS, query_len)
    clear_start, clear_end = clear_range(start, end, cached + first, last, KEYS, WINDOW)

    member = tl.arange(0, ROWS)
    token = first + member // GROUP
    head = kv_head * GROUP + member % GROUP
    mine = (member < TOKENS * GROUP) & (token < query_len)
    packed = (tl.load(query_starts + segment) + token).to(tl.int64)
    asked = load_queries(query, packed, head, mine, query_token_stride, query_head_stride, KEY_DIM, PAD_KEY)
    highest, total = empty_sums(sinks, head, mine & (partial < 0), ROWS, SINKS)
    answer, log_sum = attend_range(
        asked, cached + token, start, end, clear_start, clear_end,
        keys, values, key_scales, value_scales, kv_head, tables + segment * table_stride, scale,
        highest, total,
        ROWS, HEADS, GROUP, KEY_DIM, VALUE_DIM, PAD_KEY, PAD_VALUE, BLOCK_SIZE, KEYS,
        True, WINDOW, SOFTCAP, INT8,
    )  # fmt: skip
    if partial < 0:
        store_answers(out, packed * HEADS + head, answer, mine, VALUE_DIM, PAD_VALUE)
    else:
        place = partial + (member // GROUP).to(tl.int64) * tl.load(part + 5)
        store_partials(
            partials, partial_sums, place * HEADS + head, answer, log_sum, mine, VALUE_DIM, PAD_VALUE
        )
